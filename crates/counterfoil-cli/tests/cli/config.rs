//! `config` and what `serve` refuses to start with.

use crate::home::Home;

#[test]
fn the_default_file_passes_its_own_check() {
    let home = Home::sqlite();
    let default = home.ok(&["config", "default"]);
    home.configure(&default);

    let answer = home.ok(&["config", "check"]);

    assert!(answer.starts_with("ok: counterfoil.toml"), "{answer}");
}

#[test]
fn without_a_file_the_defaults_hold() {
    assert!(Home::sqlite().ok(&["config", "check"]).starts_with("ok: "));
}

#[test]
fn every_problem_is_one_line_with_its_place_and_the_nearest_name() {
    let home = Home::sqlite();
    home.configure(
        "[relay]\nleese = \"20s\"\n\n\n\
         [destination.billing]\ntype = \"webhook\"\nurl = \"https://example.com/\"\n\
         unsigned = true\nbackoff-base = \"1h\"\n\
         [[route]]\nevents = \"*\"\nto = [\"biling\"]\n",
    );

    for command in [&["config", "check"][..], &["serve"]] {
        let done = home.run(command);

        assert_eq!(done.code, Some(2), "{done:?}");
        let expected = [
            "2: unknown key `leese` in [relay]; did you mean `lease`?",
            "5: `backoff-cap` in [destination.billing]: ",
            "12: the route to `biling` leads to no destination; did you mean `billing`?",
        ];
        let lines: Vec<&str> = done.err.lines().collect();
        assert_eq!(lines.len(), expected.len(), "{done:?}");
        for (line, expected) in lines.iter().zip(expected) {
            let expected = format!("error: counterfoil.toml:{expected}");
            assert!(line.starts_with(&expected), "{line} should be {expected}");
        }
    }
}

#[test]
fn a_lease_that_an_attempt_can_outlast_is_refused() {
    let home = Home::sqlite();
    home.configure(
        "[relay]\nlease = \"5s\"\n[destination.billing]\ntype = \"webhook\"\n\
         url = \"https://example.com/\"\nunsigned = true\ntimeout = \"8s\"\n",
    );

    let refused = home.refused(&["serve"], 2);

    assert!(
        refused.contains("counterfoil.toml:7: the lease (5s) is too short"),
        "{refused}"
    );
}

#[test]
fn a_listen_url_is_for_postgres_only() {
    let home = Home::sqlite();
    home.configure("[database]\nlisten-url = \"postgres://127.0.0.1/app\"\n");

    let refused = home.refused(&["serve"], 2);

    assert!(
        refused.contains("`listen-url` in [database] is for PostgreSQL"),
        "{refused}"
    );
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let refused = Home::sqlite().refused(&["config", "check", "--config", "nowhere.toml"], 2);

    assert!(refused.contains("nowhere.toml cannot be read"), "{refused}");
}

#[test]
fn an_address_that_others_can_reach_needs_a_token() {
    let home = Home::sqlite();

    let refused = home.refused(&["serve", "--listen", "0.0.0.0:0"], 2);

    assert!(
        refused.contains("no tokens are set: add a [token.NAME]"),
        "{refused}"
    );
    assert!(!home.file().exists(), "nothing was begun");
}

#[test]
fn operators_need_no_secrets_of_destinations() {
    let home = Home::sqlite();
    home.configure(
        "[destination.billing]\ntype = \"webhook\"\nurl = \"https://example.com/\"\n\
         secrets = [\"env:COUNTERFOIL_NOT_SET_ANYWHERE\"]\n",
    );

    home.ok(&["migrate"]);
    home.ok(&["outbox", "stats"]);
    let refused = home.refused(&["serve"], 2);

    assert!(
        refused.contains("COUNTERFOIL_NOT_SET_ANYWHERE is not set"),
        "{refused}"
    );
}

#[test]
fn every_variable_that_is_missing_is_named_at_once() {
    let home = Home::sqlite();
    home.configure(
        "[database]\nurl = \"env:NOT_SET_1\"\nlisten-url = \"env:NOT_SET_2\"\n\
         [server]\ntokens = [\"env:NOT_SET_3\", \"env:NOT_SET_4\"]\n\
         [destination.a]\ntype = \"webhook\"\nurl = \"env:NOT_SET_5\"\n\
         secrets = [\"env:NOT_SET_6\", \"env:NOT_SET_7\"]\n\
         headers = { one = \"env:NOT_SET_8\", two = \"env:NOT_SET_9\" }\n",
    );

    let done = home.run(&["config", "check"]);

    assert_eq!(done.code, Some(2), "{done:?}");
    for n in 1..=9 {
        let named = format!("the environment variable NOT_SET_{n} is not set");
        assert_eq!(done.err.matches(&named).count(), 1, "{n}: {done:?}");
    }
    assert_eq!(done.err.lines().count(), 9, "{done:?}");
}

#[cfg(feature = "redis")]
#[test]
fn what_a_broker_needs_is_named_at_once_and_consumers_are_counted() {
    let home = Home::sqlite();
    let text = "[destination.a]\ntype = \"redis\"\nurl = \"env:NOT_SET_1\"\n\
         password = \"env:NOT_SET_2\"\nstream = \"events\"\n\
         [[consumer]]\nname = \"stock\"\nto = { destination = \"a\" }\n\
         from = { type = \"redis\", url = \"env:NOT_SET_3\", password = \"env:NOT_SET_4\", stream = \"s\" }\n";
    home.configure(text);

    let done = home.run(&["config", "check"]);

    for n in 1..=4 {
        assert!(done.err.contains(&format!("NOT_SET_{n} ")), "{n}: {done:?}");
    }
    let url = "redis://127.0.0.1/";
    home.configure(
        &text
            .replace("env:NOT_SET_1", url)
            .replace("env:NOT_SET_3", url)
            .replace("env:NOT_SET_2", "pw")
            .replace("env:NOT_SET_4", "pw"),
    );
    let answer = home.ok(&["config", "check"]);
    assert!(answer.contains("destinations: 1"), "{answer}");
    assert!(answer.contains("consumers: 1"), "{answer}");
}

#[test]
fn a_short_token_is_one_mistake() {
    let home = Home::sqlite();
    home.configure("[server]\nlisten = \"0.0.0.0:7070\"\ntokens = [\"short\"]\n");

    let refused = home.refused(&["config", "check"], 2);

    assert!(refused.contains("at least 16 characters"), "{refused}");
}
