"""The reasoner's client: ask a question, run the smoke test. Plain OpenAI HTTP; needs neither Ray nor vLLM."""
