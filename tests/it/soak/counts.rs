//! How often did what happen?

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts by name, shared by all who count.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts(Arc<Mutex<BTreeMap<String, u64>>>);

// === impl Counts ===

impl Counts {
    pub(crate) fn add(&self, what: &str, n: u64) {
        *self.all().entry(what.to_string()).or_default() += n;
    }

    /// Of everything whose name begins with `what`.
    pub(crate) fn of(&self, what: &str) -> u64 {
        let all = self.all();
        let those = all.iter().filter(|(name, _)| name.starts_with(what));
        those.map(|(_, n)| n).sum()
    }

    pub(crate) fn copy(&self) -> Self {
        Self(Arc::new(Mutex::new(self.all().clone())))
    }

    pub(crate) fn each(&self) -> Vec<(String, u64)> {
        let all = self.all();
        all.iter().map(|(what, n)| (what.clone(), *n)).collect()
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, n) in self.all().iter() {
            writeln!(f, "  {n:>7}  {what}")?;
        }
        Ok(())
    }
}
