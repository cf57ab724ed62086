//! Ctrl-C, SIGTERM and SIGHUP.
//!
//! # Promise
//! A signal never ends xtask at once. It ends what runs in the foreground, and the command in
//! progress returns through its guards, which stop the servers. A second signal kills what the
//! first one could not end.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::process::{Signal, Target, send};
use crate::stop::Stop;

#[derive(Debug)]
struct State {
    seen: bool,
    foreground: Option<Target>,
}

static STATE: Mutex<State> = Mutex::new(State {
    seen: false,
    foreground: None,
});
static CHANGED: Condvar = Condvar::new();

/// Starts listening for signals.
pub(crate) fn install() -> Result<(), Stop> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|error| Stop::failed(format!("cannot listen for signals: {error}")))?;
    std::thread::spawn(move || {
        for signal in signals.forever() {
            arrived(signal);
        }
    });
    Ok(())
}

/// Fails once a signal has been seen.
pub(crate) fn check() -> Result<(), Stop> {
    if state().seen {
        Err(Stop::Interrupted)
    } else {
        Ok(())
    }
}

/// Waits for a signal.
pub(crate) fn wait() {
    let mut state = state();
    while !state.seen {
        state = CHANGED.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Names the child that gets the signals from now on.
pub(crate) fn foreground(child: Option<Target>) {
    state().foreground = child;
}

fn arrived(signal: i32) {
    let mut state = state();
    match state.foreground {
        // It shares our terminal, so it got the Ctrl-C too and decides what it means.
        Some(Target::Process(_)) if signal == SIGINT => {}
        Some(child) => {
            let how = if state.seen {
                Signal::Kill
            } else {
                Signal::Terminate
            };
            send(how, child);
            state.seen = true;
        }
        None => state.seen = true,
    }
    CHANGED.notify_all();
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}
