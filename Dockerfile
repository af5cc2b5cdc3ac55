# The one image of docker-compose.yml. Build argument: TORCH_INDEX, an index with another build of torch than the
# registry's own, which has the GPU libraries and runs without a GPU, too; PyTorch's page on installation names
# one for processors alone (small), and one for each version of CUDA.
ARG BASE_IMAGE=python:3.11-slim
FROM ${BASE_IMAGE} AS dependencies
ARG TORCH_INDEX=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY pyproject.toml constraints.txt requirements.lock ./
# torch first and by itself: no other package may pull another build of it
RUN pip install --constraint constraints.txt torch torchvision \
    ${TORCH_INDEX:+--index-url "$TORCH_INDEX"}
# what the project needs, without Ray: here clients are containers. Archives of these hashes and no other (make lock)
RUN pip install --no-deps --require-hashes --requirement requirements.lock

# the weights of LPIPS change with what fetches them, not with the rest of the code
FROM dependencies AS weights
COPY attacks/__init__.py attacks/base.py attacks/
COPY attacks/metrics attacks/metrics
COPY fl_app/__init__.py fl_app/types.py fl_app/
COPY fl_app/torch_backend fl_app/torch_backend
COPY fl_app/models fl_app/models
RUN FL_APP_CACHE=/build/cache python -m attacks.metrics.lpips_weights

FROM dependencies
RUN apt-get update && apt-get install --yes --no-install-recommends nginx-light && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 49999 --home-dir /app --create-home app \
    # a volume gets its owner from the folder that it is first mounted on
    && for folder in state runs data flwr proxy secrets/ca secrets/trust secrets/server secrets/operator secrets/public secrets/node \
        secrets/node-0 secrets/node-1 secrets/node-2 secrets/node-3 secrets/node-4 \
        secrets/node-5 secrets/node-6 secrets/node-7 secrets/node-8 secrets/node-9; \
    do install --directory --owner app --group app "/app/$folder"; done
COPY --from=weights /build/cache /app/cache
COPY pyproject.toml /app/project/
COPY conf /app/project/conf
COPY attacks /app/project/attacks
COPY fl_app /app/project/fl_app
ENV PYTHONPATH=/app/project
ENV FL_APP_CACHE=/app/cache
ENV FLWR_HOME=/app/flwr
ENV FLWR_TELEMETRY_ENABLED=0
ENV FLWR_DISABLE_UPDATE_CHECK=1
# how often a SuperLink or SuperNode looks for work, in seconds: a round has several such waits
ENV FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.2
USER app
WORKDIR /app
