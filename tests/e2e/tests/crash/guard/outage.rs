//! The database goes away while the server lives.

use counterfoil::Postgres;
use counterfoil_e2e::guarded::{Answer, Ask, Ledger, Line, Moment, Passes, Server, Shop};
use counterfoil_e2e::wait;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

super::tests!(on_servers:
    case_25_transactional_without_records_nothing_runs,
    case_25_leased_without_records_nothing_runs,
    case_26_transactional_what_cannot_be_completed_has_not_happened,
    case_26_leased_what_cannot_be_recorded_at_once_is_answered_and_recorded_later,
    case_25_a_database_that_is_silent_lets_nothing_run,
    case_25_transactional_a_claim_that_is_not_answered_leaves_nothing_behind,
    case_25_leased_a_claim_that_is_not_answered_leaves_nothing_behind,
    case_26_transactional_a_database_that_falls_silent_takes_effect_once,
    case_26_leased_a_database_that_falls_silent_takes_effect_once,
);
super::tests!(postgres_commits Postgres:
    case_26_transactional_a_commit_whose_answer_is_lost_is_replayed,
    case_22_transactional_killed_in_the_middle_of_the_commit_is_replayed,
);

/// A server whose line to the database can be cut.
async fn far_away<D: Ledger>(shop: &Shop<D>) -> (Server, Line) {
    let line = Line::to(&shop.home.url).await;
    let mut args = shop.args();
    args.place.database = line.url();
    (shop.server_with(&args).await, line)
}

/// Nothing is known to have happened: the same request may be sent again.
fn unavailable(answer: &Answer) {
    assert_eq!(
        (answer.status, answer.problem().as_str()),
        (503, "guard-unavailable")
    );
    assert!(answer.says_when());
}

async fn nothing_runs<D: Ledger>(shop: Shop<D>, before: Ask, fresh: Ask) {
    let (server, mut line) = far_away(&shop).await;
    let first = server.door.ask(&before).await.unwrap();

    line.cut().await;
    for ask in [&fresh, &before, &fresh] {
        unavailable(&server.door.ask(ask).await.unwrap());
    }

    assert_eq!(server.door.runs().await, 1);
    assert_eq!(shop.the_effect().await.receipt(), first.receipt());
    line.mend().await;
    let again = fetch(&server, &before).await;
    let answer = fetch(&server, &fresh).await;
    assert_eq!((again.replayed(), again.body), (true, first.body));
    assert_eq!((answer.status, answer.replayed()), (200, false));
    assert_eq!(server.door.runs().await, 2);
    assert_eq!(shop.effects().await.len(), 2);
}

/// A patient caller gets its answer.
async fn fetch(server: &Server, ask: &Ask) -> Answer {
    ask.insist(&[server.door]).await
}

async fn case_25_transactional_without_records_nothing_runs<D: Ledger>(shop: Shop<D>) {
    nothing_runs(shop, Ask::pay("before"), Ask::pay("fresh")).await;
}

async fn case_25_leased_without_records_nothing_runs<D: Ledger>(shop: Shop<D>) {
    nothing_runs(shop, Ask::charge("before"), Ask::charge("fresh")).await;
}

async fn case_26_transactional_what_cannot_be_completed_has_not_happened<D: Ledger>(shop: Shop<D>) {
    let (mut server, mut line) = far_away(&shop).await;
    let ask = Ask::pay("k");
    let caller = server.halted(&ask, Moment::Done).await;

    line.cut().await;
    server.door.go().await;
    let told = caller.await.unwrap().unwrap();

    unavailable(&told);
    line.mend().await;
    let answer = fetch(&server, &ask).await;
    assert_eq!((answer.status, answer.replayed()), (200, false));
    assert_eq!(answer.receipt(), shop.the_effect().await.receipt());
}

async fn case_26_leased_what_cannot_be_recorded_at_once_is_answered_and_recorded_later<
    D: Ledger,
>(
    shop: Shop<D>,
) {
    let (mut server, mut line) = far_away(&shop).await;
    let ask = Ask::charge("k");
    let caller = server.halted(&ask, Moment::Done).await;

    line.cut().await;
    server.door.go().await;
    let answer = caller.await.unwrap().unwrap();

    assert_eq!((answer.status, answer.replayed()), (200, false));
    line.mend().await;
    let again = server.door.settled(&ask).await;
    assert_eq!((again.status, again.replayed()), (200, true));
    assert_eq!(again.body, answer.body);
    assert_eq!(answer.receipt(), shop.the_effect().await.receipt());
    assert_eq!(server.door.runs().await, 1);
}

async fn case_25_a_database_that_is_silent_lets_nothing_run<D: Ledger>(shop: Shop<D>) {
    let (server, line) = far_away(&shop).await;
    for ask in [Ask::pay("before"), Ask::charge("before")] {
        assert_eq!(server.door.ask(&ask).await.unwrap().status, 200);
    }

    line.silence();
    let (pay, charge) = (Ask::pay("k1"), Ask::charge("k2"));
    let (paid, charged) = tokio::join!(server.door.ask(&pay), server.door.ask(&charge));

    unavailable(&paid.unwrap());
    unavailable(&charged.unwrap());
    assert_eq!(server.door.runs().await, 2);
    line.speak();
    for ask in [pay, charge] {
        let answer = fetch(&server, &ask).await;
        assert_eq!((answer.status, answer.replayed()), (200, false));
    }
    assert_eq!(shop.effects().await.len(), 4);
}

/// The record was read, and then the database says nothing to the claim, which it may have got or
/// gets later.
async fn claim_is_not_answered<D: Ledger>(shop: Shop<D>, ask: impl Fn(&str) -> Ask) {
    let (server, line) = far_away(&shop).await;
    assert_eq!(server.door.ask(&ask("before")).await.unwrap().status, 200);

    for (passes, word) in [(Passes::Later, "hush-later"), (Passes::Yes, "hush-now")] {
        line.silence_at(word, passes);
        let told = server.door.ask(&ask(word)).await.unwrap();
        line.silenced().await;
        let runs = server.door.runs().await;
        line.speak();

        unavailable(&told);
        let answer = fetch(&server, &ask(word)).await;
        assert_eq!((answer.status, answer.replayed()), (200, false), "{word}");
        assert_eq!(server.door.runs().await, runs + 1, "{word}");
    }
    assert_eq!(shop.effects().await.len(), 3);
}

async fn case_25_transactional_a_claim_that_is_not_answered_leaves_nothing_behind<D: Ledger>(
    shop: Shop<D>,
) {
    claim_is_not_answered(shop, |key| Ask::pay(key)).await;
}

async fn case_25_leased_a_claim_that_is_not_answered_leaves_nothing_behind<D: Ledger>(
    shop: Shop<D>,
) {
    claim_is_not_answered(shop, |key| Ask::charge(key)).await;
}

async fn case_26_transactional_a_database_that_falls_silent_takes_effect_once<D: Ledger>(
    shop: Shop<D>,
) {
    let (mut server, line) = far_away(&shop).await;
    let ask = Ask::pay("k");
    let caller = server.halted(&ask, Moment::Done).await;

    line.silence();
    server.door.go().await;
    let told = caller.await.unwrap().unwrap();

    unavailable(&told);
    line.speak();
    let answer = fetch(&server, &ask).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.receipt(), shop.the_effect().await.receipt());
}

async fn case_26_leased_a_database_that_falls_silent_takes_effect_once<D: Ledger>(shop: Shop<D>) {
    let (mut server, line) = far_away(&shop).await;
    let ask = Ask::charge("k");
    let caller = server.halted(&ask, Moment::Done).await;

    line.silence();
    server.door.go().await;
    let answer = caller.await.unwrap().unwrap();

    assert_eq!((answer.status, answer.replayed()), (200, false));
    line.speak();
    // What was written into the silence may arrive or not.
    let told = server.door.settled(&ask).await;
    if told.problem() == "outcome-uncertain" {
        shop.reconcile(&shop.args()).await;
    }
    let again = server.door.ask(&ask).await.unwrap();
    assert_eq!((again.status, again.replayed()), (200, true));
    assert_eq!(again.body, answer.body);
    assert_eq!(answer.receipt(), shop.the_effect().await.receipt());
    assert_eq!(server.door.runs().await, 1);
}

/// Holds up every commit that contains an effect.
struct SlowCommits {
    holder: PgConnection,
    key: i64,
}

impl SlowCommits {
    async fn set(shop: &Shop<Postgres>) -> Self {
        let key = fastrand::i64(1..);
        let mut holder = PgConnection::connect(&shop.home.url).await.unwrap();
        let sql = format!(
            "SELECT pg_advisory_lock({key});
             CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN PERFORM pg_advisory_xact_lock_shared({key}); RETURN NULL; END $$;
             CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON effects
                 DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow()"
        );
        let set = sqlx::raw_sql(AssertSqlSafe(sql));
        set.execute(&mut holder).await.unwrap();
        Self { holder, key }
    }

    async fn somebody_commits(&self, shop: &Shop<Postgres>) {
        let pool = &shop.home.pool;
        let key = self.key;
        wait::until("somebody commits", || async move {
            let waiting: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
                 WHERE locktype = 'advisory' AND NOT granted AND query LIKE '%COMMIT%'
                   AND (classid::bigint << 32) | objid::bigint = $1",
            )
            .bind(key)
            .fetch_one(pool)
            .await
            .unwrap();
            (waiting > 0).then_some(())
        })
        .await;
    }

    async fn remove(mut self) {
        sqlx::query("SELECT pg_advisory_unlock($1)")
            .bind(self.key)
            .execute(&mut self.holder)
            .await
            .unwrap();
    }
}

async fn case_26_transactional_a_commit_whose_answer_is_lost_is_replayed(shop: Shop<Postgres>) {
    let slow = SlowCommits::set(&shop).await;
    let (server, mut line) = far_away(&shop).await;
    let (door, ask) = (server.door, Ask::pay("k"));
    let caller = tokio::spawn(async move { door.ask(&ask).await });
    slow.somebody_commits(&shop).await;

    line.cut().await;
    let told = caller.await.unwrap().unwrap();
    slow.remove().await;

    unavailable(&told);
    line.mend().await;
    let answer = fetch(&server, &Ask::pay("k")).await;
    assert_eq!((answer.status, answer.replayed()), (200, true));
    assert_eq!(answer.receipt(), shop.the_effect().await.receipt());
    assert_eq!(server.door.runs().await, 1);
}

async fn case_22_transactional_killed_in_the_middle_of_the_commit_is_replayed(
    shop: Shop<Postgres>,
) {
    let slow = SlowCommits::set(&shop).await;
    let mut first = shop.server().await;
    let mut args = shop.args();
    args.wait = 100;
    let second = shop.server_with(&args).await;
    let (door, ask) = (first.door, Ask::pay("k"));
    let caller = tokio::spawn({
        let ask = ask.clone();
        async move { door.ask(&ask).await }
    });
    slow.somebody_commits(&shop).await;

    first.process.kill().await;
    assert!(caller.await.unwrap().is_err());
    let meanwhile = second.door.ask(&ask).await.unwrap();
    slow.remove().await;

    assert_eq!(
        (meanwhile.status, meanwhile.problem().as_str()),
        (409, "in-progress")
    );
    let answer = second.door.settled(&ask).await;
    assert_eq!((answer.status, answer.replayed()), (200, true));
    assert_eq!(answer.receipt(), shop.the_effect().await.receipt());
    assert_eq!(second.door.runs().await, 0);
}
