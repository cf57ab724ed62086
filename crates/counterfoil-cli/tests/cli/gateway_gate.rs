//! Gateways with a gate in Redis: it saves work and decides nothing.

use std::sync::mpsc::channel;

use counterfoil_testkit::server::PrivateRedis;
use tokio::runtime::Runtime;

use crate::client::Answer;
use crate::gateway::{configure, door, order, replayed, settled};
use crate::home::{Home, Served, until};
use crate::on_every_database;
use crate::upstream::Upstream;

on_every_database!(
    gateway_case_27_a_gate_that_is_flushed_lets_nothing_run_twice,
    behind_a_gateway_that_died_the_database_decides,
    without_redis_the_database_decides_alone,
    many_duplicates_at_two_gateways_while_redis_dies_are_one_call,
);

/// A Redis of its own, and a file that names it.
struct Gated {
    redis: PrivateRedis,
    runtime: Runtime,
    upstream: Upstream,
}

impl Gated {
    fn start(home: &Home) -> Option<Self> {
        let runtime = Runtime::new().unwrap();
        let redis = runtime.block_on(PrivateRedis::start())?;
        let upstream = Upstream::start(home.path());
        configure(home, &upstream, "");
        let file = home.path().join("counterfoil.toml");
        let text = std::fs::read_to_string(file).unwrap();
        // However busy the machine is, the gate is waited for.
        let gate = format!(
            "[gateway]\ngate = \"{}\"\ngate-ttl = \"1h\"\ngate-patience = \"20s\"\n",
            redis.url()
        );
        let text = text.replacen("[gateway]\n", &gate, 1);
        home.configure(&text);
        Some(Self {
            redis,
            runtime,
            upstream,
        })
    }

    fn flush(&self) {
        self.runtime.block_on(self.redis.flush());
    }

    /// Waits until so many gates are shut.
    #[track_caller]
    fn shut(&self, n: usize) {
        until("the gate", || {
            let size = self.runtime.block_on(self.redis.say("DBSIZE"));
            (size == format!(":{n}")).then_some(())
        });
    }
}

fn spawn(served: &Served, key: &str, what: &str) -> std::thread::JoinHandle<Answer> {
    let (door, key, what) = (door(served).to_owned(), key.to_owned(), what.to_owned());
    std::thread::spawn(move || order(&door, &key, &what))
}

fn gateway_case_27_a_gate_that_is_flushed_lets_nothing_run_twice(home: &Home) {
    let Some(gated) = Gated::start(home) else {
        return;
    };
    // The service takes its time.
    home.amend("\ntimeout = \"20s\"", "\ntimeout = \"50s\"")
        .amend("\nlease = \"30s\"", "\nlease = \"60s\"")
        .amend("probe-after = \"30s\"", "probe-after = \"60s\"");
    let (here, there) = (home.serve(), home.serve());
    let first = spawn(&here, "k", "hold-after");
    gated.upstream.waiting(1);
    gated.shut(1);

    let busy = order(door(&there), "k", "hold-after");
    gated.flush();
    let flushed = order(door(&there), "k", "hold-after");
    gated.upstream.go();
    let first = first.join().unwrap();
    gated.flush();
    let again = order(door(&there), "k", "hold-after");
    let other = order(door(&there), "k", "something else");

    for told in [busy, flushed] {
        let problem = told.problem();
        assert_eq!((told.status, problem.as_str()), (409, "in-progress"));
    }
    assert_eq!((first.status, replayed(&first)), (201, false));
    assert_eq!((again.status, replayed(&again)), (201, true));
    assert_eq!(again.body, first.body);
    assert_eq!(other.status, 422);
    assert_eq!((gated.upstream.calls(), gated.upstream.effects()), (1, 1));
    gated.shut(0);
    here.stop();
    there.stop();
}

fn behind_a_gateway_that_died_the_database_decides(home: &Home) {
    let Some(gated) = Gated::start(home) else {
        return;
    };
    let here = home.serve();
    let first = spawn(&here, "k", "hold-after");
    gated.upstream.waiting(1);
    here.signal("KILL");
    here.end();
    assert_eq!(first.join().unwrap().status, 0);
    gated.upstream.go();
    gated.shut(1);

    // The gate stays shut, though the lease is over.
    home.an_hour_later();
    let there = home.serve();
    let told = settled(&there, "k", "hold-after");

    assert_eq!(
        (told.status, told.problem().as_str()),
        (410, "result-not-kept")
    );
    assert_eq!((gated.upstream.calls(), gated.upstream.effects()), (1, 1));
    gated.shut(1);
    there.stop();
}

fn without_redis_the_database_decides_alone(home: &Home) {
    let Some(mut gated) = Gated::start(home) else {
        return;
    };
    let served = home.serve();
    let before = order(door(&served), "before", "");

    gated.runtime.block_on(gated.redis.kill());
    let again = order(door(&served), "before", "");
    let other = order(door(&served), "before", "something else");
    let fresh = order(door(&served), "meanwhile", "");
    gated.runtime.block_on(gated.redis.restart());
    let later = order(door(&served), "meanwhile", "");

    assert_eq!((before.status, replayed(&before)), (201, false));
    assert_eq!((replayed(&again), &again.body), (true, &before.body));
    assert_eq!(other.status, 422);
    assert_eq!((fresh.status, replayed(&fresh)), (201, false));
    assert_eq!((replayed(&later), &later.body), (true, &fresh.body));
    assert_eq!((gated.upstream.calls(), gated.upstream.effects()), (2, 2));
    let metrics = served.get("/metrics").body;
    assert!(
        metrics.contains("counterfoil_gate_aside_total"),
        "{metrics}"
    );
    served.stop();
}

fn many_duplicates_at_two_gateways_while_redis_dies_are_one_call(home: &Home) {
    let Some(mut gated) = Gated::start(home) else {
        return;
    };
    let (here, there) = (home.serve(), home.serve());
    let (tell, told) = channel();
    for n in 0..100 {
        let served = [&here, &there][n % 2];
        let (door, tell) = (door(served).to_owned(), tell.clone());
        std::thread::spawn(move || {
            // Whoever is told to come again does.
            let answer = until("an answer", || {
                Some(order(&door, "k", "hold-after")).filter(|a| a.status != 409)
            });
            tell.send(answer).unwrap();
        });
    }
    gated.upstream.waiting(1);

    gated.runtime.block_on(gated.redis.kill());
    gated.upstream.go();

    let answers: Vec<Answer> = told.iter().take(100).collect();
    let first = answers.iter().filter(|a| !replayed(a)).count();
    assert_eq!(first, 1, "one ran");
    for answer in &answers {
        assert_eq!((answer.status, &answer.body), (201, &answers[0].body));
    }
    assert_eq!((gated.upstream.calls(), gated.upstream.effects()), (1, 1));
    here.stop();
    there.stop();
}

#[test]
fn a_gate_that_cannot_work_is_refused_with_its_line() {
    let routes = "[[gateway.route]]\nupstream = \"shop\"\ncaller = \"one\"\n\
                  [upstream.shop]\nurl = \"http://127.0.0.1:8000\"\n";
    for (keys, expected) in [
        (
            "gate = \"127.0.0.1:6379\"",
            "3: `gate` in [gateway]: the address of Redis cannot be used: ",
        ),
        (
            "gate = \"redis://127.0.0.1/\"\ngate-ca-file = \"nowhere.pem\"",
            "4: `gate-ca-file` in [gateway]: nowhere.pem cannot be read: ",
        ),
        (
            "gate = \"env:COUNTERFOIL_TEST_NO_SUCH\"",
            "3: `gate` in [gateway]: the environment variable",
        ),
        (
            "gate = \"redis://127.0.0.1/\"\ngate-ttl = \"2h\"",
            "4: `gate-ttl` in [gateway]: the gate's ttl is ",
        ),
        (
            "gate = \"redis://127.0.0.1/\"\ngate-patience = \"0s\"",
            "4: `gate-patience` in [gateway]: patience must be greater than zero",
        ),
        (
            "gate = \"redis://127.0.0.1/\"\ngate-prefix = \" \"",
            "4: `gate-prefix` in [gateway]: without it",
        ),
        (
            "gate = \"redis://127.0.0.1/\"\ngate-tll = \"1s\"",
            "4: unknown key `gate-tll` in [gateway]; did you mean `gate-ttl`?",
        ),
        ("gate = 7", "3: `gate` in [gateway]: invalid type"),
    ] {
        let home = Home::sqlite();
        home.configure(&format!(
            "[gateway]\nlisten = \"127.0.0.1:0\"\n{keys}\n{routes}"
        ));

        let told = home.refused(&["config", "check"], 2);

        let expected = format!("error: counterfoil.toml:{expected}");
        assert!(told.starts_with(&expected), "{expected}\n{told}");
    }
}
