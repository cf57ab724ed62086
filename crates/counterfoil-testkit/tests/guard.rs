//! The guard's conformance suite in memory.

use counterfoil_testkit::guard::MemoryGuardHarness;

counterfoil_testkit::guard_suite!(MemoryGuardHarness);
