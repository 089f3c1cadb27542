"""One replica: a supervised vLLM server, its arguments and its interpreter."""
