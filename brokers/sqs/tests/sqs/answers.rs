//! Every answer of the service has its outcome.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use counterfoil_core::source::{Settle, Source, SourceError};
use counterfoil_core::{Code, Delivery, Destination, Outcome};
use counterfoil_sqs::{Sqs, SqsSource};
use counterfoil_testkit::broker::fixture::messages;

use crate::harness::{settings, source_settings};
use crate::service::{Answer, Service, error, says};

async fn offered(service: &Service, batch: &[Delivery]) -> Vec<Outcome> {
    let queue = format!("{}/1/orders", service.url);
    let destination = Sqs::new(settings(&service.url, &queue)).unwrap();
    destination.publish(batch).await
}

fn source(service: &Service) -> SqsSource {
    let queue = format!("{}/1/orders", service.url);
    SqsSource::new(source_settings(&service.url, &queue)).unwrap()
}

/// The ids of the entries of a request.
fn ids(body: &str) -> Vec<String> {
    let request: serde_json::Value = serde_json::from_str(body).unwrap();
    let entries = request["Entries"].as_array().unwrap().iter();
    let id = |entry: &serde_json::Value| entry["Id"].as_str().unwrap().to_owned();
    entries.map(id).collect()
}

fn all_well(body: &str) -> String {
    let well: Vec<_> = ids(body)
        .iter()
        .map(|id| format!(r#"{{"Id":"{id}","MessageId":"m","MD5OfMessageBody":"x"}}"#))
        .collect();
    format!(r#"{{"Successful":[{}],"Failed":[]}}"#, well.join(","))
}

#[tokio::test]
async fn credentials_and_rights_are_the_destinations_fault() {
    for code in [
        "InvalidClientTokenId",
        "SignatureDoesNotMatch",
        "AccessDenied",
        "KmsDisabled",
    ] {
        let service = Service::start(move |_, _| error(403, code)).await;

        let outcomes = offered(&service, &messages(3)).await;
        let refused = source(&service).subscribe().await.err().unwrap();

        for outcome in outcomes {
            assert_eq!(outcome.label(), "destination-refused", "{code}");
        }
        assert!(
            matches!(refused, SourceError::Refused(_)),
            "{code}: {refused:?}"
        );
    }
}

#[tokio::test]
async fn who_is_throttled_is_told_to_wait() {
    let throttled = |_: &str, _: &str| -> Answer {
        let body = r#"{"__type":"com.amazonaws.sqs#RequestThrottled"}"#;
        Some((400, "retry-after: 7", body.into()))
    };
    let service = Service::start(throttled).await;

    let outcomes = offered(&service, &messages(1)).await;

    let Outcome::Retry { after, .. } = &outcomes[0] else {
        panic!("{outcomes:?}");
    };
    assert_eq!(*after, Some(Duration::from_secs(7)));
    assert_eq!(service.asked("SendMessageBatch").len(), 1, "sent once");
}

#[tokio::test]
async fn each_entry_has_its_own_outcome_and_a_forgotten_one_is_unconfirmed() {
    let partial = r#"{"Successful":[{"Id":"0","MessageId":"m","MD5OfMessageBody":"x"}],"Failed":[
        {"Id":"1","SenderFault":true,"Code":"InvalidMessageContents"},
        {"Id":"2","SenderFault":false,"Code":"InternalError"},
        {"Id":"3","SenderFault":false,"Code":"ThrottlingException"}]}"#;
    let service = Service::start(move |_, _| says(partial)).await;

    let outcomes = offered(&service, &messages(5)).await;

    assert_eq!(outcomes[0], Outcome::Stored);
    assert_eq!(outcomes[1].label(), "refused");
    let code = |outcome: &Outcome| match outcome {
        Outcome::Retry { code, after, .. } => (code.clone(), after.is_some()),
        other => panic!("{other:?}"),
    };
    assert_eq!(code(&outcomes[2]), (Code::UPSTREAM_5XX, false));
    assert_eq!(code(&outcomes[3]), (Code::UPSTREAM_4XX, true));
    assert_eq!(code(&outcomes[4]), (Code::UNCONFIRMED, false));
}

#[tokio::test]
async fn a_request_that_is_refused_as_a_whole_is_sent_one_by_one() {
    let picky = |_: &str, body: &str| match ids(body).len() {
        1 if body.contains(r#"\"aggregate\":1,"#) => error(400, "BatchRequestTooLong"),
        1 => says(&all_well(body)),
        _ => error(400, "BatchRequestTooLong"),
    };
    let service = Service::start(picky).await;

    let outcomes = offered(&service, &messages(3)).await;

    assert_eq!(outcomes[0], Outcome::Stored);
    assert!(matches!(&outcomes[1], Outcome::Refused { code, .. } if *code == Code::TOO_LARGE));
    assert_eq!(outcomes[2], Outcome::Stored);
}

#[tokio::test]
async fn a_service_that_hangs_up_or_fails_leaves_a_doubt() {
    let hangs_up = Service::start(|_, _| None).await;
    let fails = Service::start(|_, _| error(503, "ServiceUnavailable")).await;
    let babbles = Service::start(|_, _| says("<html>")).await;

    for (service, expected) in [
        (hangs_up, Code::UNCONFIRMED),
        (fails, Code::UPSTREAM_5XX),
        (babbles, Code::UNCONFIRMED),
    ] {
        let outcomes = offered(&service, &messages(1)).await;
        let found = matches!(&outcomes[0], Outcome::Retry { code, .. } if *code == expected);
        assert!(found, "{expected}: {outcomes:?}");
    }
}

#[tokio::test]
async fn what_fails_to_be_deleted_is_deleted_again_and_a_stale_receipt_is_passed_over() {
    static TRIES: AtomicUsize = AtomicUsize::new(0);
    let service = Service::start(|action, _| match action {
        "ReceiveMessage" => says(
            r#"{"Messages":[{"MessageId":"a","ReceiptHandle":"ra","Body":"1"},
                {"MessageId":"b","ReceiptHandle":"rb","Body":"2"},
                {"MessageId":"c","ReceiptHandle":"rc","Body":"3"}]}"#,
        ),
        "DeleteMessageBatch" if TRIES.fetch_add(1, Ordering::SeqCst) == 0 => says(
            r#"{"Successful":[{"Id":"1"}],"Failed":[
                {"Id":"2","SenderFault":false,"Code":"InternalError"},
                {"Id":"3","SenderFault":true,"Code":"ReceiptHandleIsInvalid"}]}"#,
        ),
        "DeleteMessageBatch" => says(r#"{"Successful":[{"Id":"2"}],"Failed":[]}"#),
        _ => says("{}"),
    })
    .await;
    let mut member = source(&service).subscribe().await.unwrap();
    let held = member.receive(10).await.unwrap();

    let done = held.iter().map(|a| (a.tag, Settle::Done)).collect();
    member.settle(done).await.unwrap();

    let asked = service.asked("DeleteMessageBatch");
    assert_eq!(ids(&asked[0]), ["1", "2", "3"]);
    assert_eq!(ids(&asked[1]), ["2"]);
    assert_eq!(asked.len(), 2);
}

#[tokio::test]
async fn a_message_with_nowhere_to_go_stays_where_it_is() {
    let service = Service::start(|action, _| match action {
        "ReceiveMessage" => {
            says(r#"{"Messages":[{"MessageId":"a","ReceiptHandle":"ra","Body":"1"}]}"#)
        }
        "GetQueueUrl" => error(400, "QueueDoesNotExist"),
        _ => says("{}"),
    })
    .await;
    let mut member = source(&service).subscribe().await.unwrap();
    let held = member.receive(1).await.unwrap();

    let why = counterfoil_core::source::DeadLetter {
        code: Code::VALIDATION_ERROR,
        error: "no".into(),
        attempts: 1,
    };
    let refused = member.settle(vec![(held[0].tag, Settle::Dead(why))]).await;

    assert!(
        matches!(refused, Err(SourceError::Refused(_))),
        "{refused:?}"
    );
    assert_eq!(service.asked("DeleteMessageBatch"), Vec::<String>::new());
}

#[tokio::test]
async fn a_queue_says_how_long_it_keeps_messages() {
    let service =
        Service::start(|_, _| says(r#"{"Attributes":{"MessageRetentionPeriod":"345600"}}"#)).await;

    let kept = source(&service).retention().await.unwrap();

    assert_eq!(kept, Some(Duration::from_secs(345_600)));
}
