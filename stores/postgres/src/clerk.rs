//! Statements of several requests in one.
//!
//! # Promise
//! A job that comes while others are being done goes with all that wait into the next statement,
//! and so into one commit; a job that comes alone is done at once. Each caller gets the answer to
//! its own job. When the server refuses a statement, its jobs are done one by one, so that one bad
//! job is no other's harm. A connection on which the server says nothing is given up in time, and
//! no more jobs wait than memory bears.
//! # When the caller goes away
//! Its job is done all the same.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::store::{Result, StoreError};
use tokio::sync::oneshot;

/// At most so many jobs in one statement.
const MOST: usize = 64;
/// So many statements at one time.
const HANDS: usize = 1;
/// So many may wait. Callers give up long before their turn comes behind so many.
const WAITING: usize = 16_384;
/// How long one statement may take. A dead connection may say nothing for ever.
const PATIENCE: Duration = Duration::from_secs(15);

/// What a clerk does.
#[async_trait]
pub(crate) trait Work: Send + Sync + 'static {
    type Job: Send + Sync;
    type Answer: Send;

    /// Whether two jobs must not go into one statement.
    fn apart(one: &Self::Job, other: &Self::Job) -> bool;

    /// Does all of them or none; one answer for each, in their order.
    async fn all(&self, jobs: &[Self::Job]) -> Result<Vec<Self::Answer>>;
}

struct Order<W: Work> {
    job: W::Job,
    answer: oneshot::Sender<Result<W::Answer>>,
}

struct Counter<W: Work> {
    waiting: VecDeque<Order<W>>,
    busy: usize,
}

/// Takes jobs, and does them together.
pub(crate) struct Clerk<W: Work> {
    work: W,
    counter: Mutex<Counter<W>>,
}

impl<W: Work> Clerk<W> {
    pub(crate) fn new(work: W) -> Arc<Self> {
        Arc::new(Self {
            work,
            counter: Mutex::new(Counter {
                waiting: VecDeque::new(),
                busy: 0,
            }),
        })
    }

    /// Has a job done.
    pub(crate) async fn ask(self: &Arc<Self>, job: W::Job) -> Result<W::Answer> {
        let (answer, answered) = oneshot::channel();
        let hand = {
            let mut counter = self.counter();
            if counter.waiting.len() >= WAITING {
                return Err(StoreError::Unreachable("too many wait for it".into()));
            }
            counter.waiting.push_back(Order { job, answer });
            let free = counter.busy < HANDS;
            counter.busy += usize::from(free);
            free
        };
        if hand {
            tokio::spawn(Arc::clone(self).serve());
        }
        answered
            .await
            .map_err(|gone| StoreError::Database(gone.into()))?
    }

    /// Serves until nobody waits.
    async fn serve(self: Arc<Self>) {
        let mut hand = Hand {
            clerk: &self,
            rests: false,
        };
        while let Some(orders) = hand.next() {
            let (jobs, answers): (Vec<_>, Vec<_>) =
                orders.into_iter().map(|o| (o.job, o.answer)).unzip();
            for (answer, said) in answers.into_iter().zip(self.each(&jobs).await) {
                // Nobody may be there any more.
                let _ = answer.send(said);
            }
        }
    }

    async fn each(&self, jobs: &[W::Job]) -> Vec<Result<W::Answer>> {
        match self.in_time(jobs).await {
            Ok(answers) => answers.into_iter().map(Ok).collect(),
            Err(error) if jobs.len() == 1 => vec![Err(error)],
            Err(error @ StoreError::Unreachable(_)) => {
                let why = error.one_line();
                let unreachable = || Err(StoreError::Unreachable(why.clone().into()));
                jobs.iter().map(|_| unreachable()).collect()
            }
            Err(_) => {
                let mut answers = Vec::with_capacity(jobs.len());
                for job in jobs {
                    let alone = self.in_time(std::slice::from_ref(job)).await;
                    answers.push(alone.and_then(|mut one| one.pop().ok_or_else(no_answer)));
                }
                answers
            }
        }
    }

    async fn in_time(&self, jobs: &[W::Job]) -> Result<Vec<W::Answer>> {
        match tokio::time::timeout(PATIENCE, self.work.all(jobs)).await {
            Ok(said) => said,
            Err(late) => Err(StoreError::Unreachable(late.into())),
        }
    }

    fn counter(&self) -> std::sync::MutexGuard<'_, Counter<W>> {
        self.counter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One statement at a time. It rests when nobody waits, and when it is dropped by a panic.
struct Hand<'a, W: Work> {
    clerk: &'a Clerk<W>,
    rests: bool,
}

impl<W: Work> Hand<'_, W> {
    /// What waits, or `None` when the hand rests: in one step, so that no job is left behind.
    fn next(&mut self) -> Option<Vec<Order<W>>> {
        let mut counter = self.clerk.counter();
        let mut orders: Vec<Order<W>> = Vec::new();
        while orders.len() < MOST
            && let Some(next) = counter.waiting.front()
            && !orders.iter().any(|o| W::apart(&o.job, &next.job))
        {
            orders.extend(counter.waiting.pop_front());
        }
        if orders.is_empty() {
            counter.busy -= 1;
            self.rests = true;
            return None;
        }
        Some(orders)
    }
}

impl<W: Work> Drop for Hand<'_, W> {
    fn drop(&mut self) {
        if !self.rests {
            self.clerk.counter().busy -= 1;
        }
    }
}

fn no_answer() -> StoreError {
    StoreError::Database("a statement has answered for fewer records than it was given".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::Semaphore;

    /// Doubles numbers, as often as it is let; refuses statements with a 13 in them.
    struct Doubles {
        leave: Semaphore,
        statements: Mutex<Vec<Vec<u32>>>,
    }

    #[async_trait]
    impl Work for Doubles {
        type Job = u32;
        type Answer = u32;

        fn apart(one: &u32, other: &u32) -> bool {
            one == other
        }

        async fn all(&self, jobs: &[u32]) -> Result<Vec<u32>> {
            self.leave.acquire().await.unwrap().forget();
            self.statements.lock().unwrap().push(jobs.to_vec());
            match jobs.iter().find(|j| [13, 14].contains(*j)) {
                Some(13) => Err(StoreError::Database("thirteen".into())),
                Some(_) => Err(StoreError::Unreachable("fourteen".into())),
                None => Ok(jobs.iter().map(|j| j * 2).collect()),
            }
        }
    }

    /// Has these jobs done; the first is under way before the others come.
    async fn done(jobs: &[u32]) -> (Vec<Result<u32>>, Vec<Vec<u32>>) {
        let clerk = Clerk::new(Doubles {
            leave: Semaphore::new(0),
            statements: Mutex::default(),
        });
        let mut asked = Vec::new();
        for job in jobs {
            let (clerk, job) = (Arc::clone(&clerk), *job);
            asked.push(tokio::spawn(async move { clerk.ask(job).await }));
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
        }
        clerk.work.leave.add_permits(1_000);
        let mut answers = Vec::new();
        for one in asked {
            answers.push(
                tokio::time::timeout(Duration::from_secs(60), one)
                    .await
                    .unwrap()
                    .unwrap(),
            );
        }
        assert_eq!(clerk.counter().busy, 0);
        let statements = clerk.work.statements.lock().unwrap().clone();
        (answers, statements)
    }

    #[tokio::test]
    async fn what_waits_goes_together_and_each_gets_its_answer() {
        let (answers, statements) = done(&[1, 2, 3, 4, 5]).await;

        let answers: Vec<u32> = answers.into_iter().map(Result::unwrap).collect();
        assert_eq!(answers, [2, 4, 6, 8, 10]);
        assert_eq!(statements, [vec![1], vec![2, 3, 4, 5]]);
    }

    #[tokio::test]
    async fn one_bad_job_is_no_others_harm() {
        let (answers, _) = done(&[1, 2, 3, 13, 5]).await;

        let answers: Vec<Option<u32>> = answers.into_iter().map(Result::ok).collect();
        assert_eq!(answers, [Some(2), Some(4), Some(6), None, Some(10)]);
    }

    #[tokio::test]
    async fn after_a_lost_connection_nothing_is_done_twice() {
        let (answers, statements) = done(&[1, 2, 3, 14, 5]).await;

        assert!(matches!(answers[2], Err(StoreError::Unreachable(_))));
        assert!(matches!(answers[4], Err(StoreError::Unreachable(_))));
        assert_eq!(statements.len(), 2);
    }

    /// The server says nothing to the first, and everything to those behind it.
    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_holds_nobody_up_for_ever() {
        let clerk = Clerk::new(Doubles {
            leave: Semaphore::new(0),
            statements: Mutex::default(),
        });

        let silent = clerk.ask(1).await;
        clerk.work.leave.add_permits(1);
        let next = clerk.ask(2).await;

        assert!(matches!(silent, Err(StoreError::Unreachable(_))));
        assert_eq!(next.unwrap(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn not_more_wait_than_memory_bears() {
        let clerk = Clerk::new(Doubles {
            leave: Semaphore::new(0),
            statements: Mutex::default(),
        });
        let mut asked = tokio::task::JoinSet::new();
        for job in 0..=u32::try_from(WAITING).unwrap() + 1 {
            let clerk = Arc::clone(&clerk);
            asked.spawn(async move { clerk.ask(job + 100).await.is_ok() });
        }
        tokio::task::yield_now().await;
        clerk.work.leave.add_permits(1_000_000);

        let done = asked.join_all().await;

        assert!(done.contains(&false) && done.contains(&true));
        assert_eq!(clerk.counter().waiting.len(), 0);
    }

    #[tokio::test]
    async fn jobs_that_must_be_apart_are() {
        let (answers, statements) = done(&[1, 2, 3, 3, 4]).await;

        assert!(answers.iter().all(Result::is_ok));
        assert_eq!(statements[1..], [vec![2, 3], vec![3, 4]]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn nobody_is_left_waiting() {
        let clerk = Clerk::new(Doubles {
            leave: Semaphore::new(1_000_000),
            statements: Mutex::default(),
        });
        let mut asked = tokio::task::JoinSet::new();
        for start in 0..32_u32 {
            let clerk = Arc::clone(&clerk);
            asked.spawn(async move {
                for n in 100..1_100 {
                    let job = n * 32 + start;
                    assert_eq!(clerk.ask(job).await.unwrap(), job * 2);
                }
            });
        }
        let all = async { while asked.join_next().await.transpose().unwrap().is_some() {} };
        tokio::time::timeout(Duration::from_secs(120), all)
            .await
            .unwrap();
    }
}
