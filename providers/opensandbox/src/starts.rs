//! Turns of commands that start through the server. It is one process, which takes the longer for each of them the more it
//! has at once, and from its 21st on makes a connection to a daemon anew for each.

use std::{
    pin::pin,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::Instant,
};

/// So many at least are under way at once: enough for the server to be never without work.
const PLACES: usize = 8;

/// More than this number of starts in a second no server forwards: one that is far away gets as many at once as it takes.
const IN_A_SECOND: u128 = 400;

/// A start that has waited so long for its answer keeps no other one waiting.
const COUNTS_FOR: Duration = Duration::from_millis(250);

/// The turns of one server.
#[derive(Debug)]
pub(crate) struct Starts {
    places: Semaphore,
    distance: Mutex<Distance>,
}

#[derive(Debug)]
struct Distance {
    /// How many places there are.
    places: usize,
    /// The shortest time for an answer so far.
    quickest: Duration,
}

impl Starts {
    pub(crate) fn new() -> Self {
        let distance = Distance { places: PLACES, quickest: Duration::MAX };
        Self { places: Semaphore::new(PLACES), distance: Mutex::new(distance) }
    }

    /// Starts a command when it is its turn. The turn is over with the head of the answer, which does not wait for the end
    /// of the command.
    pub(crate) async fn turn<T, E>(&self, start: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let place = self.places.acquire().await.expect("it is never closed");
        let (begin, mut start) = (Instant::now(), pin!(start));
        let answer = tokio::time::timeout(COUNTS_FOR, &mut start).await;
        match answer {
            // What did not arrive tells no distance.
            Ok(Err(error)) => return Err(error),
            Ok(Ok(_)) | Err(_) => self.learn(begin.elapsed(), place),
        }
        match answer {
            Ok(answer) => answer,
            Err(_) => start.await,
        }
    }

    /// Gives a place back, or away.
    fn learn(&self, took: Duration, place: SemaphorePermit<'_>) {
        let mut distance = self.distance.lock().unwrap_or_else(PoisonError::into_inner);
        distance.quickest = distance.quickest.min(took);
        let under_way = distance.quickest.as_millis() * IN_A_SECOND / 1000;
        let wanted = usize::try_from(under_way).unwrap_or(usize::MAX).max(PLACES);
        if wanted > distance.places {
            self.places.add_permits(wanted - distance.places);
            distance.places = wanted;
        } else if wanted < distance.places {
            place.forget();
            distance.places -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, time::Duration};

    use futures_util::future::join_all;
    use tokio::time::Instant;

    use super::Starts;

    const COUNT: usize = 100;

    /// Starts so many, each of which is answered after this time: how many were under way at once, and how long all took.
    async fn start(starts: &Starts, count: usize, answer: Duration) -> (usize, Duration) {
        let (now, most, begin) = (Cell::new(0), Cell::new(0), Instant::now());
        let one = || {
            starts.turn(async {
                now.set(now.get() + 1);
                most.set(most.get().max(now.get()));
                tokio::time::sleep(answer).await;
                now.set(now.get() - 1);
                Ok::<_, ()>(())
            })
        };
        let all = join_all((0..count).map(|_| one()));
        let all = tokio::time::timeout(Duration::from_secs(3600), all).await.expect("each has its turn");
        assert_eq!(all, vec![Ok(()); count]);
        (most.get(), begin.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_near_has_a_few_starts_at_once() {
        assert_eq!(start(&Starts::new(), COUNT, Duration::from_millis(5)).await.0, 8);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_far_away_has_as_many_as_it_takes_and_no_more_when_it_has_come_near() {
        let starts = Starts::new();
        let (most, took) = start(&starts, COUNT, Duration::from_millis(100)).await;
        assert!((30..=40).contains(&most) && took <= Duration::from_millis(500), "{most}, {took:?}");
        // Those that are too many go one by one.
        start(&starts, COUNT, Duration::from_millis(5)).await;
        assert_eq!(start(&starts, COUNT, Duration::from_millis(5)).await.0, 8);
    }

    #[tokio::test(start_paused = true)]
    async fn starts_that_are_not_answered_keep_no_other_one_waiting() {
        let starts = Starts::new();
        start(&starts, COUNT, Duration::from_millis(5)).await;
        let silent = join_all((0..COUNT).map(|_| starts.turn(std::future::pending::<Result<(), ()>>())));
        let later = async {
            tokio::task::yield_now().await;
            start(&starts, 1, Duration::from_millis(5)).await.1
        };
        let waited = tokio::select! {
            waited = later => waited,
            _ = silent => unreachable!("they are never answered"),
        };
        assert!(waited <= Duration::from_secs(4), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn places_of_starts_that_are_dropped_or_refused_are_there_again() {
        let starts = Starts::new();
        for _ in 0..COUNT {
            let dropped = starts.turn(std::future::pending::<Result<(), ()>>());
            assert!(tokio::time::timeout(Duration::from_millis(1), dropped).await.is_err());
            let refused = starts.turn(async { Err::<(), _>(()) });
            assert_eq!(tokio::time::timeout(Duration::from_secs(3600), refused).await, Ok(Err(())));
        }
        assert_eq!(start(&starts, COUNT, Duration::from_millis(5)).await.0, 8);
    }
}
