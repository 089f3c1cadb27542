"""The diffusers engine: Cosmos3's components from diffusers under our own batched denoise loop.

engine      DiffusersEngine: info, denoise (one wave), finish (one sample)
lean        what a replica imports of diffusers, and what not
loader      components from a checkpoint onto a device
compute     what a sample's bytes depend on: processor, number of threads, libraries
prompt      text to token ids
positions   where text, vision and action tokens lie in time and space
network     the transformer's forward over packed strands; text keys and values computed once
attend      attention restricted to one strand
schedule    the flow schedule from shift and steps
codec       pixels to latents and back
condition   what a sample's media fix: vision, action
transfer    control media, chunk by chunk
denoising   one sample's state between steps
together    which samples share the matrix products; on a CPU the proof that it changes no bit
wave        the loop over a wave: progress, cancellation, failure, out of memory
outputs     decode, check, encode, write
"""
