"""What captured graphs buy on a GPU, through REST: tails of the first requests, throughput, time to ready, memory.

    python -m benchmarks.gpu [MODEL...] [--devices 2]

Models are served in fp16 with 32 shapes each (batch 1, 2, 4, 8 by 160 to 448 px); the shapes of requests follow Zipf's
law in the order of the plan (small ones are frequent). Each model is warmed, proven and served from its bundle; beside
it, in the same run, the same model in this server's eager engine, and in a plain eager handler as TorchServe's
BaseHandler runs one (tensor to the device, ``model(...)`` in inference mode, ``tolist()``), in a process of its own
without any HTTP.
"""
