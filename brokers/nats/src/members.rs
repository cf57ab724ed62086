//! Who is in the group, and who should serve which partition.
//!
//! # Promise
//! Members that know of each other agree on one of them for each partition, and the partitions are
//! spread evenly. Nothing depends on their knowing: the server alone says who may receive, and
//! members that disagree for a while only wait longer.
//!
//! Each member says every now and then that it is there, on a subject of the group. The text is
//! `NAME here 0,3` with the partitions of which it has messages, or `NAME gone`.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// The most members that are counted.
const MOST: usize = 1_000;

/// What is known about the group.
#[derive(Debug)]
pub(crate) struct Members {
    me: String,
    others: BTreeMap<String, Other>,
    patience: Duration,
}

#[derive(Debug)]
struct Other {
    seen: Instant,
    holds: Vec<u16>,
}

/// What somebody said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Nothing that matters.
    None,
    /// Somebody came or went.
    Changed,
}

impl Members {
    /// A group in which only we are. Who is silent for longer than `patience` is not counted.
    pub(crate) fn new(me: String, patience: Duration) -> Self {
        Self {
            me,
            others: BTreeMap::new(),
            patience,
        }
    }

    /// What we say.
    pub(crate) fn here(&self, holds: &[u16]) -> String {
        let holds: Vec<String> = holds.iter().map(ToString::to_string).collect();
        format!("{} here {}", self.me, holds.join(","))
    }

    /// What we say at the end.
    pub(crate) fn gone(&self) -> String {
        format!("{} gone", self.me)
    }

    /// Somebody said something.
    pub(crate) fn hear(&mut self, text: &str, now: Instant) -> News {
        let mut words = text.split(' ');
        let (name, what) = (words.next().unwrap_or_default(), words.next());
        if name.is_empty() || name == self.me {
            return News::None;
        }
        match what {
            Some("here") => {
                let holds = words.next().unwrap_or_default().split(',');
                let other = Other {
                    seen: now,
                    holds: holds.filter_map(|n| n.parse().ok()).collect(),
                };
                let known = self.others.contains_key(name);
                if known || self.others.len() < MOST {
                    self.others.insert(name.to_owned(), other);
                }
                match known {
                    true => News::None,
                    false => News::Changed,
                }
            }
            Some("gone") if self.others.remove(name).is_some() => News::Changed,
            _ => News::None,
        }
    }

    /// Forgets who was silent for too long.
    pub(crate) fn forget_silent(&mut self, now: Instant) -> News {
        let before = self.others.len();
        self.others
            .retain(|_, other| now.duration_since(other.seen) < self.patience);
        match self.others.len() == before {
            true => News::None,
            false => News::Changed,
        }
    }

    /// Whether this partition should be ours.
    pub(crate) fn is_mine(&self, partition: u16) -> bool {
        let mut all: Vec<&str> = self.others.keys().map(String::as_str).collect();
        all.push(&self.me);
        all.sort_unstable();
        all[usize::from(partition) % all.len()] == self.me
    }

    /// Whether somebody else has messages of this partition, as far as we were told.
    pub(crate) fn hold(&self, partition: u16) -> bool {
        let others = self.others.values();
        others.into_iter().any(|o| o.holds.contains(&partition))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn mine(members: &Members) -> Vec<u16> {
        (0..6).filter(|n| members.is_mine(*n)).collect()
    }

    #[test]
    fn who_is_alone_has_everything() {
        let members = Members::new("a".into(), PATIENCE);

        assert_eq!(mine(&members), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn each_partition_belongs_to_one_member() {
        let now = Instant::now();
        let names = ["a", "b", "c"];
        let mut owners = [0; 6];
        for me in names {
            let mut members = Members::new(me.into(), PATIENCE);
            for other in names {
                members.hear(&format!("{other} here "), now);
            }
            let mine = mine(&members);
            assert_eq!(mine.len(), 2, "{me}");
            for n in mine {
                owners[usize::from(n)] += 1;
            }
        }
        assert_eq!(owners, [1; 6]);
    }

    #[test]
    fn who_left_or_is_silent_is_not_counted() {
        let now = Instant::now();
        let mut members = Members::new("b".into(), PATIENCE);

        assert_eq!(members.hear("a here 1,2", now), News::Changed);
        assert_eq!(members.hear("c here", now), News::Changed);
        assert_eq!(members.hear("a here 1,2", now + PATIENCE / 2), News::None);
        assert_eq!(mine(&members), [1, 4]);
        assert!(members.hold(2) && !members.hold(3));
        assert_eq!(members.forget_silent(now + PATIENCE), News::Changed);
        assert_eq!(mine(&members), [1, 3, 5]);
        assert_eq!(members.hear("a gone", now), News::Changed);
        assert_eq!(mine(&members), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn noise_is_not_counted() {
        let mut members = Members::new("b".into(), PATIENCE);

        for text in ["", " ", "a", "a what", "b here 1", "b gone", "x gone"] {
            assert_eq!(members.hear(text, Instant::now()), News::None, "{text}");
        }
        assert_eq!(members.others.len(), 0);
    }

    #[test]
    fn what_we_say_is_understood() {
        let now = Instant::now();
        let (a, mut b) = (
            Members::new("a".into(), PATIENCE),
            Members::new("b".into(), PATIENCE),
        );

        assert_eq!(b.hear(&a.here(&[0, 7]), now), News::Changed);
        assert!(b.hold(7));
        assert_eq!(b.hear(&a.here(&[]), now), News::None);
        assert!(!b.hold(7));
        assert_eq!(b.hear(&a.gone(), now), News::Changed);
    }
}
