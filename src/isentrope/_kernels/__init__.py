"""How the head is computed: one module a backend, all with the same three operations (`head.Backend`).

head.py     the problem, what a backend returns, and the maths that all of them share
eager.py    PyTorch alone, on any device, float64 included; the reference
native.py   head.cpp through ctypes: CPUs with AVX-512; build.py compiles it once
fused.py    Triton kernels for the elementwise parts and the first product, on GPUs
autograd.py  what is differentiated: the row statistics in general, and a weighted sum of log-probabilities
choose.py   which backend, and why
"""
