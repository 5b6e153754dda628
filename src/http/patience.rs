//! One timer for a connection instead of one for each of its requests.
//!
//! The server waits for a request's head only so long ([`ConnectionLimits::head_patience`]), and hyper asks for a
//! timer anew whenever it begins to wait: an entry made in the runtime's timer wheel and taken out of it again, both
//! under a lock that all connections share, for a deadline that hardly ever comes. Here a connection
//! has one entry. It stays when the request comes, is looked at when the next wait begins, and only when it
//! goes off is it seen that the deadline has moved, and set again: once in as long as the patience lasts.
//!
//! [`ConnectionLimits::head_patience`]: super::ConnectionLimits::head_patience

use hyper::rt::{Sleep, Timer};
use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

/// The timer of one connection.
#[derive(Clone)]
pub struct Patience(Arc<Mutex<Alarm>>);

struct Alarm {
    sleep: Pin<Box<tokio::time::Sleep>>,
    /// Who is woken when it goes off; `None` when it is not set.
    set_for: Option<Waker>,
}

impl Patience {
    /// Has to be called within a runtime.
    pub fn of_a_connection() -> Self {
        Self(Arc::new(Mutex::new(Alarm {
            sleep: Box::pin(tokio::time::sleep(Duration::ZERO)),
            set_for: None,
        })))
    }
}

impl Timer for Patience {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(Wait {
            alarm: self.0.clone(),
            deadline,
        })
    }
}

/// One wait for a deadline.
struct Wait {
    alarm: Arc<Mutex<Alarm>>,
    deadline: Instant,
}

impl Sleep for Wait {}

impl Future for Wait {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut alarm = lock(&self.alarm);
        loop {
            // An alarm that goes off before the deadline is as good: this then looks again.
            let is_set = alarm.sleep.deadline().into_std() <= self.deadline
                && !alarm.sleep.is_elapsed()
                && (alarm.set_for.as_ref()).is_some_and(|waker| waker.will_wake(context.waker()));
            if is_set {
                return Poll::Pending;
            }
            if Instant::now() >= self.deadline {
                return Poll::Ready(());
            }
            alarm.sleep.as_mut().reset(self.deadline.into());
            alarm.set_for = None;
            // Without tokio's budget: with none left it would answer "pending" and wake nobody.
            let mut sleep = tokio::task::coop::unconstrained(alarm.sleep.as_mut());
            if Pin::new(&mut sleep).poll(context).is_pending() {
                alarm.set_for = Some(context.waker().clone());
                return Poll::Pending;
            }
        }
    }
}

/// Only ever held by one task, and nothing under it can leave it half-changed.
fn lock(alarm: &Mutex<Alarm>) -> MutexGuard<'_, Alarm> {
    alarm.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        future::poll_fn,
        sync::atomic::{AtomicU32, Ordering::Relaxed},
        task::Wake,
    };

    #[derive(Default)]
    struct Bell(AtomicU32);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn is_over(wait: &mut Pin<Box<dyn Sleep>>, bell: &Arc<Bell>) -> bool {
        let waker = Waker::from(bell.clone());
        wait.as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_ready()
    }

    const SECOND: Duration = Duration::from_secs(1);

    /// tokio's clock stands still in this test; this one waits for real, and briefly.
    #[tokio::test]
    async fn a_wait_ends_at_its_deadline_and_not_before() {
        let patience = Patience::of_a_connection();
        let begin = Instant::now();
        for milliseconds in [20, 5, 40] {
            let deadline = Instant::now() + Duration::from_millis(milliseconds);
            let mut wait = patience.sleep_until(deadline);
            poll_fn(|context| wait.as_mut().poll(context)).await;
            assert!(Instant::now() >= deadline);
        }
        assert!(begin.elapsed() < 20 * SECOND);
    }

    #[tokio::test]
    async fn a_deadline_that_moves_on_sets_no_second_timer() {
        let (patience, bell) = (Patience::of_a_connection(), Arc::new(Bell::default()));
        let begin = Instant::now();
        let mut first = patience.sleep_until(begin + 20 * SECOND);
        assert!(!is_over(&mut first, &bell));
        let set = lock(&patience.0).sleep.deadline();
        drop(first);
        // A later deadline leaves the alarm alone; an earlier one moves it.
        let mut later = patience.sleep_until(begin + 30 * SECOND);
        assert!(!is_over(&mut later, &bell));
        assert_eq!(lock(&patience.0).sleep.deadline(), set);
        let mut earlier = patience.sleep_until(begin + 10 * SECOND);
        assert!(!is_over(&mut earlier, &bell));
        assert!(lock(&patience.0).sleep.deadline() < set);
    }

    #[tokio::test]
    async fn an_alarm_that_was_set_earlier_wakes_a_later_wait_to_look_again() {
        let (patience, bell) = (Patience::of_a_connection(), Arc::new(Bell::default()));
        let begin = Instant::now();
        let mut first = patience.sleep_until(begin + Duration::from_millis(10));
        assert!(!is_over(&mut first, &bell));
        drop(first);
        let deadline = begin + Duration::from_millis(60);
        let mut second = patience.sleep_until(deadline);
        assert!(!is_over(&mut second, &bell));
        // As a task would: polled only when it is woken.
        let mut heard = 0;
        loop {
            let rung = bell.0.load(Relaxed);
            if rung > heard {
                heard = rung;
                if is_over(&mut second, &bell) {
                    break;
                }
            }
            tokio::task::yield_now().await;
            assert!(begin.elapsed() < 20 * SECOND, "nobody woke it");
        }
        assert!(Instant::now() >= deadline);
        assert!(heard >= 2, "once early, once at the deadline");
    }

    #[tokio::test]
    async fn another_task_is_woken_too() {
        let patience = Patience::of_a_connection();
        let (one, other) = (Arc::new(Bell::default()), Arc::new(Bell::default()));
        let mut wait = patience.sleep(Duration::from_millis(5));
        assert!(!is_over(&mut wait, &one));
        assert!(!is_over(&mut wait, &other));
        let begin = Instant::now();
        while other.0.load(Relaxed) == 0 {
            tokio::task::yield_now().await;
            assert!(begin.elapsed() < 20 * SECOND, "nobody woke it");
        }
    }
}
