# Not tried yet: it was written where there is no Docker.
# docker build -t sparsefl .                                   runs on CPU
# docker build -t sparsefl --build-arg EXTRA=cuda12 .          NVIDIA GPUs
# docker run --rm -v "$PWD/runs:/work/runs" sparsefl --config=flash_cifar10:mini
FROM python:3.11-slim
ARG EXTRA=
COPY . /src
RUN pip install --no-cache-dir "/src${EXTRA:+[$EXTRA]}" && rm -r /src
WORKDIR /work
ENTRYPOINT ["sparsefl"]
