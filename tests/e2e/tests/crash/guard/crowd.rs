//! Two hundred callers with one key, at two servers that share a database.

use std::collections::HashSet;

use counterfoil::Postgres;
use counterfoil_core::BoxError;
use counterfoil_e2e::actor::ServeArgs;
use counterfoil_e2e::guarded::{Answer, Ask, Door, Effect, Moment, Server, Shop};
use counterfoil_e2e::wait;
use counterfoil_testkit::server::PrivateRedis;
use tokio::task::JoinHandle;

super::tests!(postgres Postgres:
    case_29_transactional_a_crowd_at_two_servers_runs_once,
    case_29_leased_a_crowd_at_two_servers_runs_once,
    case_27_transactional_a_crowd_runs_once_while_redis_dies,
    case_27_leased_a_crowd_runs_once_while_redis_dies,
    case_22_transactional_a_crowd_goes_on_at_the_server_that_is_left,
    case_22_leased_a_crowd_goes_on_at_the_server_that_is_left,
);

const CROWD: usize = 200;

/// Sends a request from every caller, at each server in turn.
fn crowd(doors: [Door; 2], ask: &Ask) -> Vec<JoinHandle<Result<Answer, BoxError>>> {
    let callers = doors.into_iter().cycle().take(CROWD);
    callers
        .map(|door| {
            let ask = ask.clone();
            tokio::spawn(async move { door.ask(&ask).await })
        })
        .collect()
}

/// Until somebody stands still at one of the servers.
async fn somebody_stands_still(a: &mut Server, b: &mut Server) {
    tokio::select! {
        _ = a.process.says("halted") => {}
        _ = b.process.says("halted") => {}
    }
}

/// Everybody has the receipt of the one effect.
fn all_the_same(answers: &[Answer], effect: &Effect) {
    let bodies: HashSet<_> = answers.iter().map(|a| &a.body).collect();
    assert_eq!(bodies.len(), 1, "{bodies:?}");
    for answer in answers {
        assert_eq!(answer.status, 200);
        assert_eq!(answer.receipt(), effect.receipt());
    }
}

async fn one_run(shop: Shop<Postgres>, ask: Ask, mut args: ServeArgs, redis: Option<PrivateRedis>) {
    // Nobody dies.
    args.lease = 60_000;
    let mut a = shop.server_with(&args).await;
    let mut b = shop.server_with(&args).await;

    let callers = crowd([a.door, b.door], &ask.halting(Moment::Claimed));
    somebody_stands_still(&mut a, &mut b).await;
    if let Some(mut redis) = redis {
        wait::until("the gate is in use", || async {
            (redis.say("DBSIZE").await == ":1").then_some(())
        })
        .await;
        redis.kill().await;
    }
    a.door.go().await;
    b.door.go().await;

    let mut answers = Vec::new();
    for caller in callers {
        answers.push(caller.await.unwrap().unwrap());
    }
    all_the_same(&answers, &shop.the_effect().await);
    assert_eq!(answers.iter().filter(|a| !a.replayed()).count(), 1);
    assert_eq!(a.door.runs().await + b.door.runs().await, 1);
}

async fn case_29_transactional_a_crowd_at_two_servers_runs_once(shop: Shop<Postgres>) {
    let args = shop.args();
    one_run(shop, Ask::pay("k"), args, None).await;
}

async fn case_29_leased_a_crowd_at_two_servers_runs_once(shop: Shop<Postgres>) {
    let args = shop.args();
    one_run(shop, Ask::charge("k"), args, None).await;
}

async fn while_redis_dies(shop: Shop<Postgres>, ask: Ask) {
    if let Some(redis) = PrivateRedis::start().await {
        let mut args = shop.args();
        args.redis = Some(redis.url());
        one_run(shop, ask, args, Some(redis)).await;
    }
}

async fn case_27_transactional_a_crowd_runs_once_while_redis_dies(shop: Shop<Postgres>) {
    while_redis_dies(shop, Ask::pay("k")).await;
}

async fn case_27_leased_a_crowd_runs_once_while_redis_dies(shop: Shop<Postgres>) {
    while_redis_dies(shop, Ask::charge("k")).await;
}

/// The request stands still at one server when it dies; whoever waited there goes to the other.
async fn one_dies(shop: &Shop<Postgres>, ask: &Ask) -> (Server, Vec<JoinHandle<Answer>>) {
    let mut a = shop.server().await;
    let b = shop.server().await;
    let first = a.halted(ask, Moment::Done).await;
    let doors = [a.door, b.door];
    let callers = (0..CROWD)
        .map(|n| {
            let (ask, mut doors) = (ask.clone(), doors);
            doors.rotate_left(n % 2);
            tokio::spawn(async move { ask.insist(&doors).await })
        })
        .collect();

    a.process.kill().await;

    assert!(first.await.unwrap().is_err());
    (b, callers)
}

async fn answers(callers: Vec<JoinHandle<Answer>>) -> Vec<Answer> {
    let mut answers = Vec::new();
    for caller in callers {
        answers.push(caller.await.unwrap());
    }
    answers
}

async fn case_22_transactional_a_crowd_goes_on_at_the_server_that_is_left(shop: Shop<Postgres>) {
    let (left, callers) = one_dies(&shop, &Ask::pay("k")).await;

    let answers = answers(callers).await;

    all_the_same(&answers, &shop.the_effect().await);
    assert_eq!(answers.iter().filter(|a| !a.replayed()).count(), 1);
    assert_eq!(left.door.runs().await, 1);
}

async fn case_22_leased_a_crowd_goes_on_at_the_server_that_is_left(shop: Shop<Postgres>) {
    let ask = Ask::charge("k");
    let (left, callers) = one_dies(&shop, &ask).await;
    let told = wait::until("the request is uncertain", || async {
        let told = left.door.ask(&ask).await.unwrap();
        (told.problem() == "outcome-uncertain").then_some(told)
    });
    assert_eq!(told.await.status, 409);

    shop.reconcile(&shop.args()).await;

    let answers = answers(callers).await;
    all_the_same(&answers, &shop.the_effect().await);
    assert!(answers.iter().all(Answer::replayed));
    assert_eq!(left.door.runs().await, 0);
}
