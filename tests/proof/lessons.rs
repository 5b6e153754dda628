//! Each lesson a hundred times.

use crate::support::lessons::play_each;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lesson_played_a_hundred_times_ends_a_hundred_times_the_same_way() {
    play_each(100, "hundred:").await;
}
