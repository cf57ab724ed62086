//! What Redis does not take, and what is not even sent.

use counterfoil_core::{Delivery, Destination as _, Outcome};
use counterfoil_redis_streams::Settings;
use counterfoil_testkit::server::PrivateRedis;

use crate::{build, column, delivery, label_and_code, of_size, ok, one, patient};

#[tokio::test]
async fn one_that_cannot_pass_does_not_spoil_its_batch() {
    let Some(redis) = PrivateRedis::start().await else {
        return;
    };
    ok(&redis, "SET Odd 1").await;
    let settings = Settings::new(redis.url(), "{event-type}").max_payload(1_000);
    let destination = build(settings);
    let odd = Delivery {
        event_type: "Odd".into(),
        ..delivery(3, 1)
    };
    let batch = [
        delivery(1, 1),
        of_size(1_001),
        delivery(2, 1),
        odd,
        of_size(1_000),
    ];

    let outcomes = destination.publish(&batch).await;

    let found: Vec<_> = outcomes.iter().map(label_and_code).collect();
    let expected = [
        ("stored", ""),
        ("refused", "TOO_LARGE"),
        ("stored", ""),
        ("destination-refused", "DESTINATION_REFUSED"),
        ("stored", ""),
    ];
    assert_eq!(found, expected);
    assert!(format!("{:?}", outcomes[3]).contains("WRONGTYPE"));
    let ids: Vec<String> = [0, 2, 4].map(|i: usize| batch[i].id.to_string()).into();
    assert_eq!(column(&redis.url(), "OrderPaid", "ce_id").await, ids);
    // The next one finds everything as it was.
    assert_eq!(one(&destination, &delivery(1, 2)).await, Outcome::Stored);
}

#[tokio::test]
async fn a_server_with_a_lower_limit_does_not_spoil_the_others() {
    let Some(redis) = PrivateRedis::start().await else {
        return;
    };
    ok(&redis, "CONFIG SET proto-max-bulk-len 1048576").await;
    let destination = patient(&redis.url(), "s");
    let large = of_size(8 * 1024 * 1024);
    let batch = [delivery(1, 1), large, delivery(2, 1), delivery(3, 1)];

    let outcomes = destination.publish(&batch).await;

    let labels: Vec<&str> = [0, 2, 3].map(|i: usize| outcomes[i].label()).into();
    assert_eq!(labels, ["stored"; 3]);
    // Redis says why and hangs up. When it hangs up too early, its words are lost.
    let (label, code) = label_and_code(&outcomes[1]);
    assert!(
        [("refused", "TOO_LARGE"), ("retry", "UNCONFIRMED")].contains(&(label, code)),
        "{label} {code}"
    );
    let others: Vec<String> = [0, 2, 3].map(|i: usize| batch[i].id.to_string()).into();
    assert_eq!(column(&redis.url(), "s", "ce_id").await, others);
}

#[tokio::test]
async fn credentials_that_are_not_taken_are_the_destinations_fault() {
    let Some(redis) = PrivateRedis::start().await else {
        return;
    };
    ok(&redis, "ACL SETUSER relay on >hunter2 ~orders +xadd +ping").await;
    ok(&redis, "CONFIG SET requirepass secret").await;
    let at = |user: &str| redis.url().replace("//", &format!("//{user}@"));
    let to = |url: String| Settings::new(url, "orders");
    let right = [
        to(at(":secret")),
        to(redis.url()).password("secret"),
        to(at("default")).password("secret"),
        to(at("relay:hunter2")),
    ];
    let wrong = [
        to(redis.url()),
        to(at(":hunter2")),
        to(at("relay")).password("secret"),
        to(at("nobody:secret")),
        // No right to write there.
        Settings::new(at("relay:hunter2"), "payments"),
        // No right to choose a database.
        to(format!("{}1", at("relay:hunter2"))),
    ];

    for settings in right {
        let outcome = one(&build(settings.clone()), &delivery(1, 1)).await;
        assert_eq!(outcome, Outcome::Stored, "{settings:?}");
    }
    for settings in wrong {
        let outcome = one(&build(settings.clone()), &delivery(1, 1)).await;
        let expected = ("destination-refused", "DESTINATION_REFUSED");
        assert_eq!(label_and_code(&outcome), expected, "{settings:?}");
        let shown = format!("{outcome:?}");
        assert!(!shown.contains("hunter2") && !shown.contains("secret"));
    }
    let stored = column(&at(":secret"), "orders", "ce_id").await;
    assert_eq!(stored.len(), 4);
}

#[tokio::test]
async fn a_login_or_a_database_that_does_not_exist_is_the_destinations_fault() {
    let Some(redis) = PrivateRedis::start().await else {
        return;
    };
    for settings in [
        Settings::new(redis.url(), "s").password("no password is wanted"),
        Settings::new(format!("{}99", redis.url()), "s"),
    ] {
        let outcome = one(&build(settings.clone()), &delivery(1, 1)).await;
        assert_eq!(outcome.label(), "destination-refused", "{settings:?}");
    }
}

#[tokio::test]
async fn once_the_credentials_are_right_it_goes_on() {
    let Some(redis) = PrivateRedis::start().await else {
        return;
    };
    ok(&redis, "CONFIG SET requirepass other").await;
    let destination = build(Settings::new(redis.url(), "s").password("secret"));
    let refused = one(&destination, &delivery(1, 1)).await;
    assert_eq!(refused.label(), "destination-refused");

    ok_as(&redis, "other", "CONFIG SET requirepass secret").await;

    assert_eq!(one(&destination, &delivery(1, 1)).await, Outcome::Stored);
}

async fn ok_as(redis: &PrivateRedis, password: &str, command: &str) {
    let url = redis.url().replace("//", &format!("//:{password}@"));
    let client = redis::Client::open(url).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let mut words = command.split(' ');
    let mut question = redis::cmd(words.next().unwrap());
    question.arg(words.collect::<Vec<_>>());
    question.exec_async(&mut connection).await.unwrap();
}

#[tokio::test]
async fn a_redis_that_cannot_write_now_is_tried_again() {
    let Some(redis) = PrivateRedis::start().await else {
        return;
    };
    let destination = patient(&redis.url(), "s");
    let message = delivery(1, 1);
    for (broken, mended) in [
        ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
    ] {
        ok(&redis, broken).await;
        let outcome = one(&destination, &message).await;
        assert_eq!(
            label_and_code(&outcome),
            ("retry", "UPSTREAM_5XX"),
            "{broken}: {outcome:?}"
        );
        ok(&redis, mended).await;
        assert_eq!(one(&destination, &message).await, Outcome::Stored);
    }
    let id = message.id.to_string();
    assert_eq!(
        column(&redis.url(), "s", "ce_id").await,
        [id.clone(), id],
        "what was refused was not stored"
    );
}
