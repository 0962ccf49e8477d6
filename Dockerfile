# docker build --tag baton .                            serves on the CPU, and on GPUs with --gpus all:
#                                                       libcuda comes from the container's runtime
# docker build --build-arg NCCL=2.28.9 --tag baton .    with NCCL, for the groups of trainers
# docker build --build-arg PRESET=control …            without the engine: a front of engines, or a store
# docker run --volume $PWD/model:/model --volume $PWD/keys:/keys --publish 8700:8700 baton /model --api-key-file /keys
FROM debian:12-slim AS build
ARG PRESET=release
WORKDIR /baton
COPY deploy/setup.sh deploy/setup.sh
RUN deploy/setup.sh package
COPY . .
RUN cmake --preset $PRESET -DBATON_TESTS=OFF && cmake --build --preset $PRESET
RUN cpack -G DEB --config build/$PRESET/CPackConfig.cmake -B /packages

FROM debian:12-slim AS nccl
ARG NCCL=
RUN mkdir /nccl && if [ -n "$NCCL" ]; then apt-get update && apt-get install --yes --no-install-recommends python3-pip && pip install --no-cache-dir --no-deps --target /pip "nvidia-nccl-cu12==$NCCL" && cp /pip/nvidia/nccl/lib/libnccl.so.2 /nccl; fi

FROM debian:12-slim
COPY --from=build /packages/*.deb /packages/
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates libzmq5 /packages/*.deb && rm -r /packages /var/lib/apt/lists
COPY --from=nccl /nccl/ /usr/local/lib/
RUN ldconfig && install --directory --owner=baton --group=baton /var/lib/baton
USER baton
WORKDIR /var/lib/baton
# Beyond loopback the server starts only with --api-key-file, --no-auth-cidr or --insecure.
ENV BATON_LISTEN=0.0.0.0:8700
EXPOSE 8700
# Status 1: it answers, and asks for a key. With TLS or another port set BATON_URL.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m CMD baton status >/dev/null || [ $? -eq 1 ]
STOPSIGNAL SIGTERM
ENTRYPOINT ["baton", "serve"]
