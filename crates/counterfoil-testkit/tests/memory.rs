//! The conformance suite on the memory store.

use counterfoil_testkit::memory::MemoryHarness;

counterfoil_testkit::store_suite!(MemoryHarness);
