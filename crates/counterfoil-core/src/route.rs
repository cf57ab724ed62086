//! Which destinations an event type goes to.
//!
//! A pattern is an event type in which `*` stands for any run of characters and `?` for one.

/// One rule: events that match go to these queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The pattern for event types.
    pub events: String,
    /// The queues.
    pub queues: Vec<String>,
}

/// All rules, in order. Every rule that matches adds its queues.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Routes(Vec<Route>);

impl Routes {
    /// Rules in order.
    pub fn new(routes: Vec<Route>) -> Self {
        Self(routes)
    }

    /// Adds a rule.
    pub fn add(&mut self, events: impl Into<String>, queues: Vec<String>) {
        self.0.push(Route {
            events: events.into(),
            queues,
        });
    }

    /// Whether there is no rule.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The rules.
    pub fn iter(&self) -> impl Iterator<Item = &Route> {
        self.0.iter()
    }

    /// The queues for an event type, each once, in the order of the rules.
    pub fn queues(&self, event_type: &str) -> Vec<&str> {
        let mut found: Vec<&str> = Vec::new();
        for route in self.0.iter().filter(|r| matches(&r.events, event_type)) {
            for queue in &route.queues {
                if !found.contains(&queue.as_str()) {
                    found.push(queue);
                }
            }
        }
        found
    }
}

/// Whether a text matches a pattern with `*` and `?`. Linear in practice, never recursive.
pub fn matches(pattern: &str, text: &str) -> bool {
    let (p, t): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut pi, mut ti) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while ti < t.len() {
        if pi < p.len() && p[pi] == '*' {
            star = Some((pi, ti));
            pi += 1;
        } else if pi < p.len() && (p[pi] == '?' || p[pi] == t[ti]) {
            pi += 1;
            ti += 1;
        } else if let Some((sp, st)) = star {
            pi = sp + 1;
            ti = st + 1;
            star = Some((sp, st + 1));
        } else {
            return false;
        }
    }
    p[pi..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_people_expect() {
        assert!(matches("Order*", "OrderPaid"));
        assert!(matches("*", ""));
        assert!(matches("order.?.done", "order.7.done"));
        assert!(matches("a*b*c", "aXbYbZc"));
        assert!(!matches("Order*", "order"));
        assert!(!matches("OrderPaid", "OrderPaid2"));
    }

    #[test]
    fn a_queue_is_named_once_however_many_rules_match() {
        let mut routes = Routes::default();
        routes.add("Order*", vec!["billing".into(), "search".into()]);
        routes.add("*Paid", vec!["search".into(), "mail".into()]);

        assert_eq!(routes.queues("OrderPaid"), ["billing", "search", "mail"]);
        assert!(routes.queues("Nothing").is_empty());
    }
}
