# syntax=docker/dockerfile:1
# Two stages: a Rust toolchain that builds, and a small system that only runs.

FROM rust:1.95.0-slim-bookworm AS build
WORKDIR /build

# Dependencies first, with stand-ins for our own sources: this layer, by far the slowest, is rebuilt
# only when the manifest or the lock file changes. Every target that the manifest names needs a
# stand-in.
COPY Cargo.toml Cargo.lock ./
COPY crates/embedded/Cargo.toml crates/embedded/
COPY crates/judge/Cargo.toml crates/judge/
COPY crates/lab/Cargo.toml crates/lab/
COPY crates/locks/Cargo.toml crates/locks/
COPY crates/payments/Cargo.toml crates/payments/
COPY crates/stores/Cargo.toml crates/stores/
COPY crates/tasks/Cargo.toml crates/tasks/
COPY crates/web/Cargo.toml crates/web/
RUN for crate in crates/*; do mkdir "$crate/src" && touch "$crate/src/lib.rs"; done \
    && mkdir -p src tests/it tests/proof tests/model tests/chaos benches/bench benches/instructions migrations static \
    && touch src/lib.rs \
    && for file in src/main.rs tests/it/main.rs tests/proof/main.rs tests/model/main.rs tests/chaos/main.rs benches/bench/main.rs benches/instructions/main.rs; do echo 'fn main() {}' > "$file"; done \
    && cargo build --release --locked

# Then the program. The stand-ins are newer than the real files may be, and Cargo goes by the time
# of a file.
COPY build.rs ./
# Without npm in this image the live wall has tables for charts, headings the system's face.
COPY scripts/page_files.sh scripts/page_files.sh
COPY migrations migrations
COPY static static
COPY crates crates
COPY src src
RUN touch src/lib.rs src/main.rs crates/*/src/lib.rs \
    && cargo build --release --locked --bin flash-sale

FROM debian:bookworm-20260824-slim
# Nothing is installed here: TLS and its root certificates are inside the program. With DATABASE_URL
# and REDIS_URL given, it writes no files either, so an account without a home is enough.
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin flash-sale
COPY --from=build /build/target/release/flash-sale /usr/local/bin/flash-sale
USER 10001
ENV LISTEN_ADDR=0.0.0.0:8080
EXPOSE 8080
# The image has no curl; the program asks itself.
HEALTHCHECK --interval=5s --timeout=3s --start-period=20s --retries=3 CMD ["flash-sale", "health"]
ENTRYPOINT ["flash-sale"]
CMD ["serve"]
