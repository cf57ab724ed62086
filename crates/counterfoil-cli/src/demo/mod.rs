//! `demo`: a shop under live traffic, on an embedded database that is thrown away afterwards.
//!
//! # Promise
//! Everything is real: the library in the shop's own transactions, the relay, signed webhooks to a
//! partner that fails, the API on the usual port. Orders arrive twice, tasks fail, some messages
//! are poison. It runs until it is stopped and leaves nothing behind.

mod partner;
mod shop;
mod traffic;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use counterfoil::desk::Desk;
use counterfoil_core::MessageId;
use tokio::net::TcpListener;

use crate::args::Demo;
use crate::database::Place;
use crate::failure::{Failure, Result};
use crate::serve::{self, signal::Signals};
use shop::Shop;
use traffic::Tally;

/// How often the state is printed.
const EVERY: Duration = Duration::from_secs(2);

/// Runs the demo until a signal, or for a while.
pub(crate) async fn run(args: Demo) -> Result {
    let signals = Signals::listen()?;
    if !args.listen.ip().is_loopback() {
        return Err(Failure::config(format!(
            "{} can be reached from other machines, and the demo has no tokens: listen on 127.0.0.1",
            args.listen
        )));
    }
    let listener = serve::bind(args.listen).await?;
    let address = listener.local_addr()?;
    let place = Folder::new()?;
    let partner = TcpListener::bind("127.0.0.1:0").await?;
    let partner_url = format!("http://{}/orders", partner.local_addr()?);
    let received = Arc::new(partner::Received::default());
    let receiving = tokio::spawn(partner::serve(partner, Arc::clone(&received)));
    let shop = Shop::open(&place.file(), &partner_url)
        .await
        .map_err(Failure::failed)?;
    let outbox = Place::of_file(&place.file()).open()?;
    print_welcome(address, &place, &partner_url);

    let tally = Arc::new(Tally::default());
    let traffic = tokio::spawn(traffic::run(shop.clone(), Arc::clone(&tally)));
    let printing = tokio::spawn(print_state(
        Arc::clone(shop.desk()),
        tally,
        Arc::clone(&received),
    ));
    let (first, enough) = (signals.first(), args.seconds);
    let end = async move {
        tokio::select! {
            () = first => {}
            () = after(enough) => {}
        }
    };
    let engine = (shop.nudge(), shop.registry());
    serve::beside(listener, Arc::clone(&outbox), engine, "demo", end).await?;

    println!("\nStopping: finishing what has begun …");
    traffic.abort();
    tokio::select! {
        () = shop.stop() => {}
        () = signals.second() => {}
    }
    printing.abort();
    print_last_words(shop.desk(), &received).await;
    receiving.abort();
    outbox.close().await;
    shop.close().await;
    drop(place);
    Ok(())
}

async fn after(seconds: Option<u64>) {
    match seconds {
        Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
        None => std::future::pending().await,
    }
}

/// A directory that is gone when the demo is.
struct Folder(PathBuf);

impl Folder {
    /// A new one that only its owner can read. Temporary directories are shared: one that is there
    /// already may belong to somebody else, and is never used.
    fn new() -> Result<Self> {
        let mut builder = std::fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        let unique = MessageId::new().as_uuid().simple();
        let path = std::env::temp_dir().join(format!("counterfoil-demo-{unique}"));
        builder.create(&path).map_err(|error| {
            Failure::failed(format!("cannot create {}: {error}", path.display()))
        })?;
        Ok(Self(path))
    }

    fn file(&self) -> PathBuf {
        self.0.join("shop.db")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("could not remove {}: {error}", self.0.display());
        }
    }
}

fn print_welcome(address: SocketAddr, place: &Folder, partner: &str) {
    let program = std::env::args()
        .next()
        .unwrap_or_else(|| "counterfoil".into());
    let database = format!("--database sqlite:{}", place.file().display());
    println!(
        "A small shop is running. Customers order and click twice; each order is saved together with its\n\
         tasks (charge-payment, reserve-stock, notify-fulfilment) and its event, in one transaction.\n\
         The event goes to a partner's webhook ({partner}) that fails now and then.\n\
         Some payments are poison: they are parked with a reason, and nothing else waits for them.\n\
         \n\
         Look at it from another terminal:\n\
         \n\
         \x20 {program} {database} outbox stats\n\
         \x20 {program} {database} parked list\n\
         \x20 {program} {database} parked redrive --all --confirm\n\
         \x20 {program} {database} queue pause partner --reason lunch\n\
         \x20 {program} {database} audit --history-kept\n\
         \x20 {program} policies --server http://{address}\n\
         \x20 curl http://{address}/metrics\n\
         \x20 curl http://{address}/v1/messages -H 'content-type: application/json' \\\n\
         \x20      -d '{{\"event_type\": \"OrderPlaced\", \"aggregate_type\": \"order\", \"aggregate_id\": \"mine\", \"payload\": {{}}}}'\n\
         \n\
         Ctrl-C stops it and removes everything.\n"
    );
}

async fn print_state(desk: Arc<dyn Desk>, tally: Arc<Tally>, received: Arc<partner::Received>) {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let Ok(stats) = desk.stats().await else {
            continue;
        };
        let pending: u64 = stats
            .iter()
            .map(counterfoil::desk::QueueStats::pending)
            .sum();
        let retrying: u64 = stats.iter().map(|q| q.retrying).sum();
        let parked: u64 = stats.iter().map(|q| q.parked).sum();
        println!(
            "orders {:>5}   double clicks absorbed {:>4}   partner got {:>5} ({} repeats, {} failures)   \
             waiting {pending:>3} ({retrying} retrying)   parked {parked:>3}",
            tally.orders(),
            tally.duplicates(),
            received.distinct(),
            received.repeats(),
            received.failures(),
        );
    }
}

async fn print_last_words(desk: &Arc<dyn Desk>, received: &partner::Received) {
    match desk.audit().await {
        Ok(audit) => {
            println!(
                "The books: {} sent and kept, {} still pending, {} parked; the partner applied {} orders once each.",
                audit.sent_kept,
                audit.pending,
                audit.parked,
                received.distinct()
            );
            for finding in audit.findings(true) {
                println!("  wrong: {finding}");
            }
        }
        Err(error) => println!("The books could not be read: {}", error.one_line()),
    }
}
