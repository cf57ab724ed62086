//! Records that fail, copies in memory, answers for those who must not wait, new routes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::StoreError;
use counterfoil_core::guard::{
    Change, Digest, Found, GuardStats, Key, Mark, RecordFilter, Records, Write,
};
use counterfoil_core::store::Result;
use counterfoil_http::gateway::{
    ForwardError, Gateway, Guarded, Options, Pattern, ReplayCache, Route, Step, Wrap,
};

use crate::client;
use crate::house::{Door, House, guarded, quick};
use crate::upstream::until;

/// Records that can be cut off, and that count how often they are asked.
struct Cut {
    records: Arc<dyn Records>,
    cut: AtomicBool,
    cut_at_the_end: AtomicBool,
    looks: AtomicUsize,
}

impl Cut {
    fn new(house: &House) -> Arc<Self> {
        Arc::new(Self {
            records: Arc::clone(&house.records),
            cut: AtomicBool::new(false),
            cut_at_the_end: AtomicBool::new(false),
            looks: AtomicUsize::new(0),
        })
    }

    fn check(&self) -> Result<()> {
        match self.cut.load(Ordering::SeqCst) {
            true => Err(StoreError::Unreachable("cut off".into())),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Records for Cut {
    async fn look(&self, digest: &Digest) -> Result<Option<Found>> {
        self.check()?;
        self.looks.fetch_add(1, Ordering::SeqCst);
        self.records.look(digest).await
    }

    async fn put(&self, write: &Write) -> Result<Option<i64>> {
        self.check()?;
        self.records.put(write).await
    }

    async fn change_if(&self, mark: &Mark, change: &Change) -> Result<bool> {
        self.check()?;
        if self.cut_at_the_end.load(Ordering::SeqCst) {
            return Err(StoreError::Unreachable("cut off".into()));
        }
        self.records.change_if(mark, change).await
    }

    async fn forget(&self, digest: &Digest) -> Result<bool> {
        self.records.forget(digest).await
    }

    async fn list(&self, filter: &RecordFilter) -> Result<Vec<Found>> {
        self.records.list(filter).await
    }

    async fn stuck(&self, idle: Duration, after: Option<&Found>, limit: u32) -> Result<Vec<Found>> {
        self.records.stuck(idle, after, limit).await
    }

    async fn stats(&self) -> Result<Vec<GuardStats>> {
        self.records.stats().await
    }

    async fn purge(&self, batch: u32) -> Result<u64> {
        self.records.purge(batch).await
    }
}

async fn door_over(house: &House, records: Arc<dyn Records>, guard: Guarded) -> Door {
    let gateway = Gateway::new(records);
    let route = house.route(quick(), Some(guard));
    gateway.set_routes(vec![route], &Options::default());
    Door::open(gateway).await
}

pub(crate) async fn gateway_case_25_without_records_nothing_is_forwarded(house: House) {
    let cut = Cut::new(&house);
    let door = door_over(&house, Arc::clone(&cut) as _, guarded()).await;
    let before = door.order("before", "").await;

    cut.cut.store(true, Ordering::SeqCst);
    for key in ["fresh", "before"] {
        let told = door.order(key, "").await;
        assert_eq!(
            (told.status, told.problem().as_str()),
            (503, "guard-unavailable")
        );
        assert!(told.headers.contains_key("retry-after"));
    }
    assert_eq!(house.upstream.calls().await, 1);

    cut.cut.store(false, Ordering::SeqCst);
    assert_eq!(door.order("before", "").await.body, before.body);
    assert_eq!(door.order("fresh", "").await.status, 201);
    assert_eq!(house.upstream.calls().await, 2);
}

pub(crate) async fn gateway_case_26_what_cannot_be_recorded_is_answered_and_uncertain(
    house: House,
) {
    let cut = Cut::new(&house);
    let mut guard = guarded();
    guard.rules.lease = Duration::from_millis(500);
    guard.rules.record_within = Duration::ZERO;
    let door = door_over(&house, Arc::clone(&cut) as _, guard).await;
    cut.cut_at_the_end.store(true, Ordering::SeqCst);

    let answered = door.order("k", "").await;
    cut.cut_at_the_end.store(false, Ordering::SeqCst);

    assert_eq!((answered.status, answered.replayed()), (201, false));
    // The claim is there until its lease is over; then nobody knows.
    let told = door.order("k", "").await;
    assert_eq!(
        (told.status, told.problem().as_str()),
        (409, "outcome-uncertain")
    );
    assert_eq!(house.upstream.calls().await, 1);
}

pub(crate) async fn gateway_case_27_copies_answer_without_the_database_and_may_be_lost(
    house: House,
) {
    let cut = Cut::new(&house);
    let cache = |age| Arc::new(ReplayCache::new(Arc::clone(&cut) as _, 1 << 20, age));
    let copies = cache(Duration::from_secs(60));
    let door = door_over(&house, Arc::clone(&copies) as _, guarded()).await;
    let first = door.order("k", "").await;
    assert_eq!(door.order("k", "").await.body, first.body);
    let looks = cut.looks.load(Ordering::SeqCst);

    for _ in 0..10 {
        assert_eq!(door.order("k", "").await.body, first.body);
    }
    assert_eq!(cut.looks.load(Ordering::SeqCst), looks, "a copy was there");
    let mut other = client::order("k", "");
    other
        .headers_mut()
        .insert("x-caller", "bob".parse().unwrap());
    assert!(!client::send(door.address, other).await.replayed());
    assert_eq!(door.order("k", "409").await.problem(), "key-reused");

    // A gateway without copies, and one whose copies are too old, ask the database.
    let empty = door_over(&house, cache(Duration::ZERO), guarded()).await;
    for _ in 0..3 {
        let before = cut.looks.load(Ordering::SeqCst);
        assert_eq!(empty.order("k", "").await.body, first.body);
        assert_eq!(cut.looks.load(Ordering::SeqCst), before + 1);
    }
    assert_eq!(house.upstream.calls().await, 2);

    let digest = Key::new("shop.example/alice", "orders", "k")
        .unwrap()
        .digest();
    assert!(copies.forget(&digest).await.unwrap());
    let rerun = door.order("k", "").await;
    assert_eq!((rerun.status, rerun.replayed()), (201, false));
    assert_ne!(rerun.body, first.body);
}

pub(crate) async fn an_uncertain_request_is_answered_by_202_where_configured(house: House) {
    let mut guard = guarded();
    guard.degraded = Some(Duration::from_secs(7));
    let door = house.door_with(house.route(quick(), Some(guard))).await;

    let first = door.order("a/b", "vanish-after").await;
    let again = door.order("a/b", "vanish-after").await;

    for told in [&first, &again] {
        assert_eq!(told.status, 202);
        assert_eq!(told.header("retry-after"), Some("7"));
        assert_eq!(told.json()["state"], "uncertain");
    }
    let place = first.header("location").unwrap();
    let status = client::get(door.address, place).await;
    assert_eq!(
        (status.status, &status.json()["state"]),
        (200, &"uncertain".into())
    );
    let mut other = client::request("GET", place);
    other
        .headers_mut()
        .unwrap()
        .insert("x-caller", "bob".parse().unwrap());
    let other = other.body(axum::body::Body::empty()).unwrap();
    assert_eq!(client::send(door.address, other).await.status, 404);
    assert_eq!(house.upstream.calls().await, 1);
}

pub(crate) async fn the_state_of_every_key_can_be_asked_for(house: House) {
    let mut guard = guarded();
    guard.degraded = Some(Duration::from_secs(7));
    let door = house.door_with(house.route(quick(), Some(guard))).await;

    for key in [
        "k", ".", "..", "a/../b", "a/./b", "../../x", "%2e%2e", "..;a",
    ] {
        let told = door.order(&format!("\"{key}\""), "vanish-before").await;
        assert_eq!(told.status, 202, "{key}");

        let place = told.header("location").unwrap();
        let status = client::get(door.address, place).await;

        assert_eq!(status.status, 200, "{place}");
        assert_eq!(status.json()["key"], key, "{place}");
        assert_eq!(status.json()["state"], "uncertain", "{place}");
    }
}

pub(crate) async fn what_is_wrapped_around_the_call_may_refuse_it(house: House) {
    let wrap: Wrap = Arc::new(|_: &Route, _: Step| {
        Step::new(tower::service_fn(|_| async {
            Err(ForwardError::NotNow {
                why: "as the test wants".into(),
                after: Duration::from_secs(3),
            })
        }))
    });
    let mut guard = guarded();
    let route = |guard| vec![house.route(quick(), Some(guard))];
    let options = Options {
        wrap: Some(wrap),
        ..Options::default()
    };
    let gateway = Gateway::new(Arc::clone(&house.records));
    gateway.set_routes(route(guard.clone()), &options);
    let door = Door::open(gateway).await;

    let refused = door.order("k", "").await;
    guard.degraded = Some(Duration::from_secs(7));
    door.gateway.set_routes(route(guard.clone()), &options);
    let degraded = door.order("k", "").await;

    // Nothing is recorded, so there is nothing to ask for later.
    for told in [refused, degraded] {
        assert_eq!((told.status, told.header("retry-after")), (503, Some("3")));
        assert_eq!(told.problem(), "service-resting");
        assert_eq!(told.header("location"), None);
    }
    assert_eq!(house.state_of("k").await, None);
    door.gateway.set_routes(route(guard), &Options::default());
    assert_eq!(door.order("k", "").await.status, 201);
}

pub(crate) async fn new_routes_hold_at_once_and_requests_under_way_go_on(house: House) {
    let door = house.door().await;
    let first = door.spawn("k", "hold-before");
    house.upstream.waiting(1).await;

    let mut elsewhere = house.route(quick(), Some(guarded()));
    elsewhere.path = Pattern::parse("/elsewhere").unwrap();
    let same = house.route(quick(), Some(guarded()));
    door.gateway
        .set_routes(vec![elsewhere.clone()], &Options::default());
    let gone = door.order("other", "").await;
    door.gateway
        .set_routes(vec![elsewhere, same], &Options::default());
    let waiting = door.spawn("k", "hold-before");
    house.upstream.go().await;

    assert_eq!((gone.status, gone.problem().as_str()), (404, "no-route"));
    let (first, waiting) = (first.await.unwrap(), waiting.await.unwrap());
    assert_eq!((first.status, first.replayed()), (201, false));
    assert_eq!((waiting.replayed(), waiting.body), (true, first.body));
    assert_eq!(house.upstream.calls().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_route_with_a_probe_finds_out_holds_for_all_of_its_business_type() {
    let house = House::on_sqlite().await;
    let probed = Route {
        path: Pattern::parse("/orders").unwrap(),
        ..house.route(quick(), Some(guarded()))
    };
    let unprobed = Guarded {
        probe: None,
        ..guarded()
    };
    let unprobed = house.route(quick(), Some(unprobed));
    let gateway = Gateway::new(Arc::clone(&house.records));
    gateway.set_routes(vec![probed, unprobed], &Options::default());
    let door = Door::open(gateway).await;
    assert_eq!(door.order("k", "vanish-after").await.status, 502);

    until("what came of it", async || {
        let round = door.gateway.reconcile().round().await.unwrap();
        (round.settled == 1).then_some(())
    })
    .await;

    assert_eq!(door.order("k", "vanish-after").await.status, 410);
}
