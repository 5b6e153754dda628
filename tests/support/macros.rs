//! What the test binaries write their tests with.

/// Waits until it is so, or until there is something: see `support::app::eventually`.
macro_rules! wait_for {
    ($what:expr, $found:expr) => {
        $crate::support::app::eventually($what, async || $found).await
    };
    ($condition:expr) => {
        wait_for!(stringify!($condition), ($condition).then_some(()))
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
