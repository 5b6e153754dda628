//! The second tier: faults, clusters, proxies, and what takes long or needs other programs.

/// Waits until it is so, or until there is something: see `support::app::eventually`.
macro_rules! wait_for {
    ($what:expr, $found:expr) => {
        $crate::support::app::eventually($what, async || $found).await
    };
    ($condition:expr) => {
        $crate::support::app::eventually(stringify!($condition), async || {
            ($condition).then_some(())
        })
        .await
    };
}

/// A table of tests, each of which runs the same function on its own case.
macro_rules! cases {
    ($run:path: $($(#[$doc:meta])* $name:ident => $case:expr),* $(,)?) => {
        $(
            $(#[$doc])*
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $run($case).await;
            }
        )*
    };
}

mod bots;
mod clients;
mod cluster;
mod faults;
mod front;
mod judge;
mod lab;
mod lessons;
mod locks;
mod pooler;
mod room;
#[path = "../support/mod.rs"]
mod support;
mod traces;
