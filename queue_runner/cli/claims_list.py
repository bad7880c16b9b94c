"""The claims themselves. What is written here is what docs/claims.md and `mpsq claims` say; nothing else says it."""

from __future__ import annotations

from queue_runner.cli.claims_text import Basis, Claim, Status

_POST, _MODELS, _TRAINER = "metal-post", "accelerated-pytorch", "trainer"
_GUIDE, _LIGHTNING = "pytorch-on-metal-guide", "lightning"
_HOLDS, _OUTDATED, _FALSE, _MAC = Status.HOLDS, Status.OUTDATED, Status.FALSE, Status.NEEDS_A_MAC

_LOGS = tuple(
    f"mpsq import tests/golden/parsers/metal_post_{log}.log --parser nanogpt --set device={device} --set compile={mode}"
    for log, device, mode in (("cpu_eager", "cpu", "off"), ("mps_eager", "mps", "off"), ("mps_compile", "mps", "on"))
)
_GRID = "mpsq run nanogpt --device cpu,mps --compile both --config shakespeare_char --set max_iters=50 --repeats 5"
_OPS = "mpsq run opcheck --device mps"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        1,
        _POST,
        "With the nightly build, nanoGPT trains on MPS without warnings of operators that fall back to the CPU.",
        _MAC,
        Basis.NOTHING,
        "The published logs hold no such line, but they are shortened at their beginning, where it would stand; "
        "and torch warns of the first operator of a process only. A run that said it carries the note op_fallback.",
        (
            "mpsq run nanogpt --device mps --mps fallback=on --config shakespeare_char --set max_iters=50",
            _OPS,
        ),
    ),
    Claim(
        2,
        _POST,
        "On a MacBook torch.compile makes training on MPS slower, 1.38 x, though still faster than the CPU.",
        _HOLDS,
        Basis.LOGS,
        "In the post's own three logs, iterations 10 to 50: 306 against 221 ms is 1.38 x, and 1986 ms on the CPU. "
        "One run each and a clock that does not wait for the device: a ratio, not a verdict, of one torch nightly. "
        "Whether it is so with yours, the grid says.",
        (
            _GRID,
            "mpsq report devices --vs device=mps,compile=off",
        ),
    ),
    Claim(
        3,
        _POST,
        "Over the first 50 iterations MPS is about 9 times faster than the CPU (221 against 1986 ms), compiled 6.5 "
        "times.",
        _HOLDS,
        Basis.LOGS,
        "The medians of the imported logs give 8.99 x and 6.50 x. Later iterations of the same log were slower: in "
        "the whole eager log an iteration takes 1.25 times as long in the last third as in the first.",
        (*_LOGS, "mpsq report --iters 10:50"),
    ),
    Claim(
        4,
        _POST,
        "MLX and tinygrad are the best options for training on Metal.",
        _MAC,
        Basis.NOTHING,
        "nanogpt exists in four frameworks with one model, one order of batches and one set of weights; none of "
        "them has been run on Metal by us.",
        (
            "mpsq run nanogpt --framework torch,mlx,tinygrad --device mps --compile both --repeats 6",
            "mpsq report frameworks",
        ),
    ),
    Claim(
        5,
        _POST,
        "MPS lacks operators: torch.svd falls back to the CPU with a warning, and over 70 are untriaged or to be done.",
        _OUTDATED,
        Basis.READ,
        "torch 2.14's headers have an MPS kernel of svd; 2.13's table of operators has none. Coverage is not "
        "complete: in 2.13 that table gives 130 functions a CPU and a CUDA kernel, and no MPS one. A table is not "
        "a run: some are registered elsewhere.",
        (
            _OPS,
            "mpsq report ops",
        ),
    ),
    Claim(
        6,
        _POST,
        "MLX uses Metal and also the Neural Engine.",
        _FALSE,
        Basis.MEASURED,
        "MLX 0.32's device types are cpu and gpu, and no other: nothing in it asks for the Neural Engine. That the "
        "system never moves work there by itself has not been seen: its power is read by powermetrics with sudo, "
        "which mpsq does not call.",
        ("mpsq run matmul --framework mlx --device mps",),
    ),
    Claim(
        7,
        _POST,
        "Nothing converts PyTorch or JAX models to MLX by itself; Core ML has coremltools, for inference and "
        "fine-tuning.",
        Status.OUT_OF_SCOPE,
        Basis.NOTHING,
        "A statement on converters, which no run can measure. Core ML is out of scope: docs/claims.md says why.",
    ),
    Claim(
        8,
        _POST,
        "JAX on MPS is experimental.",
        _MAC,
        Basis.NOTHING,
        "JAX reaches Metal through a plugin that must fit its version; the workload takes it under either name, "
        "and compares the loss with the CPU's. It has met no plugin yet.",
        (
            "mpsq doctor",
            "mpsq run nanogpt --framework jax --device mps --compile both --repeats 4",
        ),
    ),
    Claim(
        9,
        _POST,
        "A framework that compiles should win, since it fuses kernels and loads memory less often.",
        _FALSE,
        Basis.LOGS,
        "As a rule it is not so: the post's own log shows the contrary on MPS (claim 2). Elsewhere it can be: on an "
        "NVIDIA H200, in bf16, compiling made nanoGPT's shakespeare_char 1.29 x and its gpt2 1.27 x faster "
        "(docs/results/h200.md). For your model and torch only a run tells.",
        (
            _GRID,
            "mpsq report breakdown",
            "mpsq run kernels --device mps",
        ),
    ),
    Claim(
        10,
        _POST,
        "While training on MPS the GPU is at 100 %, with compile slightly below at times (asitop, powermetrics).",
        _MAC,
        Basis.NOTHING,
        "Utilisation is read without sudo (ioreg) every few seconds and stored with each run: mpsq show has its "
        "median, doctor that of now. Power is not read.",
        (
            _GRID,
            "mpsq show @last",
            "mpsq doctor",
        ),
    ),
    Claim(
        11,
        _POST,
        "/usr/bin/time: 3588.66 real, 90.18 user, 32.03 sys eager; 39039.74 real, 72.21 user, 21.28 sys compiled.",
        _HOLDS,
        Basis.LOGS,
        "So it stands in the logs, which claim 3 imports: compiled took 10.88 times as long in real time. The medians "
        "of its iterations "
        "explain 1.38 of that; its last evaluation alone took 1,256 s. What the Mac did meanwhile, the logs do not "
        "say.",
        ("mpsq report time",),
    ),
    Claim(
        12,
        _POST,
        "Unified memory suits models that are too large for the memory of one consumer card.",
        _MAC,
        Basis.NOTHING,
        "The largest batch that a machine trains is searched for, and what throughput each size reached is stored.",
        (
            "mpsq run nanogpt --config gpt2 --device mps --find-max batch_size",
            "mpsq report scaling",
        ),
    ),
    Claim(
        13,
        _MODELS,
        "MPS speeds up training and evaluation of ResNet50 (batch 128), BERT (64) and VGG16 (64) over the CPU.",
        _MAC,
        Basis.NOTHING,
        "The same models, batches and two modes, as workloads. A run whose first loss is not the CPU's is not "
        "compared.",
        (
            "mpsq run resnet50 --device cpu,mps --set mode=train,eval --set batch_size=128 --repeats 4",
            "mpsq run bert --device cpu,mps --set mode=train,eval --set batch_size=64 --repeats 4",
            "mpsq run vgg16 --device cpu,mps --set mode=train,eval --set batch_size=64 --repeats 4",
            "mpsq report throughput",
        ),
    ),
    Claim(
        14,
        _MODELS,
        "Unified memory allows larger networks or batches, and reduces the latency of data.",
        _MAC,
        Basis.NOTHING,
        "Two questions: the largest batch, and what a copy between host and device costs.",
        (
            "mpsq run resnet50 --device mps --find-max batch_size",
            "mpsq run transfer --device mps",
            "mpsq report transfer",
        ),
    ),
    Claim(
        15,
        _MODELS,
        "macOS 12.3 and a native arm64 Python are enough.",
        _OUTDATED,
        Basis.READ,
        "The wheels say it themselves: MPS of torch 2.9 to 2.14 asks for macOS 14.0, of 2.15 for macOS 15.0 and "
        "Python 3.11. On an older macOS pip installs them, they import, and MPS is not available. arm64 holds: "
        "there has been no x86_64 wheel since 2.2.2.",
        ("mpsq doctor",),
    ),
    Claim(
        16,
        _TRAINER,
        "The Trainer takes mps by itself where it is available.",
        _MAC,
        Basis.READ,
        "transformers 5.23 chooses so in its source, unless use_cpu is set; the run's hello names the device it got.",
        (
            "mpsq run glue --device mps",
            "mpsq show @last",
        ),
    ),
    Claim(
        17,
        _TRAINER,
        "Operators without an MPS kernel raise an error, unless PYTORCH_ENABLE_MPS_FALLBACK=1 is set; then they warn.",
        _HOLDS,
        Basis.READ,
        "Both texts are in the macOS wheels of torch 2.13 and 2.15. Three things to know: the warning comes once a "
        "process, for the first operator; a few operators fall back without the variable; it must be 1, since any "
        "word makes the import fail.",
        (
            _OPS,
            "mpsq run nanogpt --device mps --mps default --mps fallback=on",
        ),
    ),
    Claim(
        18,
        _TRAINER,
        "--use_mps_device is a flag of run_glue.",
        _OUTDATED,
        Basis.MEASURED,
        "transformers 5.23 refuses it: TrainingArguments.__init__() got an unexpected keyword argument. The device "
        "is chosen without it.",
        ("mpsq run glue --device mps",),
    ),
    Claim(
        19,
        _TRAINER,
        "gloo and nccl do not work with mps: one GPU only.",
        _HOLDS,
        Basis.READ,
        "torch 2.13's wheel refuses distributed operators on MPS and says that they cannot fall back to the CPU. A "
        "launch of several processes on mps is refused before it is queued.",
        ("mpsq submit --device mps -- torchrun --nproc_per_node=2 train.py",),
    ),
    Claim(
        20,
        _GUIDE,
        "torch.backends.mps.is_available() tells whether the GPU is supported.",
        _FALSE,
        Basis.READ,
        "Not reliably: on GitHub's hosted runners it was True while the first allocation of 256 bytes failed "
        "(github.com/actions/runner-images, issue 9918). doctor computes a real product in a child process.",
        ("mpsq doctor",),
    ),
    Claim(
        21,
        _GUIDE,
        "Matrix products and convolutions are much faster on MPS than on the CPU; what is bound by memory gains "
        "little.",
        _MAC,
        Basis.NOTHING,
        "Each operation is measured forward and backward, and placed on the roofline of its device.",
        (
            "mpsq run kernels --device cpu,mps --config large --repeats 4",
            "mpsq run matmul --device cpu,mps --set n=256,1000,4096 --repeats 4",
            "mpsq report kernels",
        ),
    ),
    Claim(
        22,
        _GUIDE,
        "100 products of 1000 x 1000 on the CPU and on MPS, timed by time.time(), show how much faster MPS is.",
        _FALSE,
        Basis.READ,
        "The snippet reads the clock without waiting for the device, and so times how fast work is handed over. "
        "Others measured 23 microseconds for one linear layer on MPS without waiting, 245 with "
        "(github.com/pytorch/pytorch, issue 152199). timing=both prints both.",
        (
            "mpsq run matmul --device cpu,mps --config guide --set timing=both",
            "mpsq report matmul",
        ),
    ),
    Claim(
        23,
        _GUIDE,
        "Lower precision (fp16, bf16) is faster and uses less memory.",
        _MAC,
        Basis.NOTHING,
        "On an NVIDIA H200 ResNet-50 trained on 4,285 images a second in bf16, on 923.9 in fp32, of which there is a "
        "single run (docs/results/h200.md). That says nothing of Apple's GPUs: M1 to M4 have the same peak in fp16 as "
        "in fp32.",
        (
            "mpsq run nanogpt --device mps --dtype fp32,bf16,fp16 --repeats 5",
            "mpsq report memory",
        ),
    ),
    Claim(
        24,
        _GUIDE,
        "Batching reduces overhead: use the batch size that uses the device best.",
        _MAC,
        Basis.NOTHING,
        "The batch size is an axis like any other; the report says from where on more does not help.",
        (
            "mpsq run nanogpt --device mps --set batch_size=4,8,16,32,64 --repeats 4",
            "mpsq report scaling",
        ),
    ),
    Claim(
        25,
        _GUIDE,
        "MPS computes with lower precision: its results differ a little from those of the CPU and of CUDA.",
        _MAC,
        Basis.NOTHING,
        "The loss of the first batch is computed on the CPU and on the device and both are stored; beyond the "
        "tolerance a run is marked wrong_loss and not compared. MPS has no float64 at all.",
        (
            "mpsq run nanogpt --device cpu,mps --repeats 4",
            "mpsq report numerics",
        ),
    ),
    Claim(
        26,
        _GUIDE,
        "Backward passes are less optimised than CUDA's: inference can be fast while training gains less.",
        _MAC,
        Basis.NOTHING,
        "The forward alone against the whole iteration, for a model and for single operations.",
        (
            "mpsq run bert --device cpu,mps --set mode=train,eval --repeats 5",
            "mpsq report train-vs-infer",
            "mpsq run kernels --device cpu,mps --set direction=both",
        ),
    ),
    Claim(
        27,
        _GUIDE,
        "Memory fragments: allocations fail while little seems to be in use.",
        _MAC,
        Basis.NOTHING,
        "Allocated and reserved bytes are stored with every iteration: their ratio, their growth, and the last "
        "values before an end for lack of memory.",
        (
            "mpsq run nanogpt --device mps --config gpt2",
            "mpsq report memory",
        ),
    ),
    Claim(
        28,
        _GUIDE,
        "There is no training on several GPUs with MPS, and custom kernels are limited.",
        _OUTDATED,
        Basis.READ,
        "The first half holds (claim 19). The second does not as it stands: torch 2.13 has "
        "torch.mps.compile_shader, which takes a kernel in Metal's language; the workload compares one with "
        "torch's own operations.",
        ("mpsq run custom_kernel --device mps",),
    ),
    Claim(
        29,
        _GUIDE,
        "The Mac has no nvidia-smi; the Activity Monitor shows the use of the GPU.",
        _HOLDS,
        Basis.READ,
        "There is no program of that name. What it would print can be had in a terminal all the same: ioreg gives the "
        "GPU's utilisation without sudo. mpsq stores it with each run and show tells its median; doctor that of now.",
        ("mpsq show @last", "mpsq doctor"),
    ),
    Claim(
        30,
        _LIGHTNING,
        "Lightning's MPS accelerator needs no change of the code; Python must say that it is arm and not i386.",
        _MAC,
        Basis.READ,
        "Lightning 2.6.6's accelerator is available only where platform.processor() is arm or arm64, so that a "
        "Python under Rosetta is not given the GPU. doctor looks at it.",
        (
            "mpsq doctor",
            "mpsq run lightning_gpt --device cpu,mps --repeats 4",
            "mpsq report devices",
        ),
    ),
)
