//! A server is killed at each point of a request's way, and the request comes again.

use counterfoil_e2e::guarded::{Ask, Ledger, Moment, Server, Shop};

super::tests!(on_all:
    case_22_transactional_killed_after_the_claim_runs_once,
    case_22_transactional_killed_after_the_effect_takes_effect_once,
    case_22_transactional_killed_after_an_error_takes_effect_once,
    case_22_transactional_killed_after_completion_is_replayed,
    case_22_leased_killed_after_the_claim_is_uncertain_and_runs_once,
    case_22_leased_killed_after_the_effect_is_uncertain_and_replayed,
    case_22_leased_killed_after_an_error_is_uncertain_and_runs_once,
    case_22_leased_killed_after_completion_is_replayed,
    case_22_answers_survive_the_server_byte_for_byte,
);

async fn case_22_transactional_killed_after_the_claim_runs_once<D: Ledger>(shop: Shop<D>) {
    rolled_back(shop, Moment::Claimed).await;
}

async fn case_22_transactional_killed_after_the_effect_takes_effect_once<D: Ledger>(shop: Shop<D>) {
    rolled_back(shop, Moment::Done).await;
}

async fn case_22_transactional_killed_after_an_error_takes_effect_once<D: Ledger>(shop: Shop<D>) {
    rolled_back(shop, Moment::Failed).await;
}

async fn case_22_transactional_killed_after_completion_is_replayed<D: Ledger>(shop: Shop<D>) {
    completed(shop, Ask::pay("k")).await;
}

async fn case_22_leased_killed_after_the_claim_is_uncertain_and_runs_once<D: Ledger>(
    shop: Shop<D>,
) {
    uncertain(shop, Moment::Claimed).await;
}

async fn case_22_leased_killed_after_the_effect_is_uncertain_and_replayed<D: Ledger>(
    shop: Shop<D>,
) {
    uncertain(shop, Moment::Done).await;
}

async fn case_22_leased_killed_after_an_error_is_uncertain_and_runs_once<D: Ledger>(shop: Shop<D>) {
    uncertain(shop, Moment::Failed).await;
}

async fn case_22_leased_killed_after_completion_is_replayed<D: Ledger>(shop: Shop<D>) {
    completed(shop, Ask::charge("k")).await;
}

/// Kills a server in whose middle the request stands still, and starts another one.
async fn killed<D: Ledger>(shop: &Shop<D>, ask: &Ask, moment: Moment) -> Server {
    let mut first = shop.server().await;
    let caller = first.halted(ask, moment).await;
    first.process.kill().await;
    let told = caller.await.unwrap();
    assert!(told.is_err(), "{told:?}");
    shop.server().await
}

async fn rolled_back<D: Ledger>(shop: Shop<D>, moment: Moment) {
    let ask = Ask::pay("k");
    let server = killed(&shop, &ask, moment).await;

    let answer = server.door.settled(&ask).await;
    let again = server.door.ask(&ask).await.unwrap();

    assert_eq!((answer.status, answer.replayed()), (200, false));
    assert_eq!(answer.receipt(), shop.the_effect().await.receipt());
    assert_eq!((again.replayed(), &again.body), (true, &answer.body));
    assert_eq!(server.door.runs().await, 1);
}

async fn completed<D: Ledger>(shop: Shop<D>, ask: Ask) {
    let server = killed(&shop, &ask, Moment::Answered).await;

    let answer = server.door.ask(&ask).await.unwrap();

    assert_eq!((answer.status, answer.replayed()), (200, true));
    assert_eq!(answer.receipt(), shop.the_effect().await.receipt());
    assert_eq!(server.door.runs().await, 0);
}

async fn uncertain<D: Ledger>(shop: Shop<D>, moment: Moment) {
    let ask = Ask::charge("k");
    let happened = moment == Moment::Done;
    let server = killed(&shop, &ask, moment).await;

    let told = server.door.settled(&ask).await;
    let again = server.door.ask(&ask).await.unwrap();

    for told in [told, again] {
        assert_eq!(
            (told.status, told.problem().as_str()),
            (409, "outcome-uncertain")
        );
        assert!(told.says_when());
    }
    assert_eq!(server.door.runs().await, 0);
    assert_eq!(shop.effects().await.len(), usize::from(happened));

    shop.reconcile(&shop.args()).await;
    let answer = server.door.ask(&ask).await.unwrap();
    let again = server.door.ask(&ask).await.unwrap();

    assert_eq!((answer.status, answer.replayed()), (200, happened));
    assert_eq!(answer.receipt(), shop.the_effect().await.receipt());
    assert_eq!((again.replayed(), &again.body), (true, &answer.body));
    assert_eq!(server.door.runs().await, usize::from(!happened));
}

async fn case_22_answers_survive_the_server_byte_for_byte<D: Ledger>(shop: Shop<D>) {
    let mut first = shop.server().await;
    let asks = [Ask::pay("k1"), Ask::charge("k2")];
    let mut answers = Vec::new();
    for ask in &asks {
        answers.push(first.door.ask(ask).await.unwrap());
    }

    first.process.kill().await;
    let second = shop.server().await;

    for (ask, answer) in asks.iter().zip(answers) {
        let again = second.door.ask(ask).await.unwrap();
        assert_eq!((answer.status, answer.replayed()), (200, false));
        assert_eq!((again.status, again.replayed()), (200, true));
        assert_eq!(again.body, answer.body);
        assert_eq!(
            again.headers.get("content-type"),
            answer.headers.get("content-type")
        );
    }
    assert_eq!(second.door.runs().await, 0);
    assert_eq!(shop.effects().await.len(), 2);
}
