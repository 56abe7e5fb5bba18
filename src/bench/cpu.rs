//! How much CPU time has a group of processes used? The figure that stays true on a noisy machine.

use std::collections::BTreeMap;

use procfs::process::Process;

/// CPU time of a group of processes and what they started, in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuReading(BTreeMap<u32, CpuOfProcess>);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct CpuOfProcess {
    own_us: u64,
    /// Of children that ended and were waited for.
    ended_children_us: u64,
}

/// Reads the group now. Processes that are gone are left out; `None` when none is there.
pub fn read(pids: &[u32]) -> Option<CpuReading> {
    let all: BTreeMap<u32, CpuOfProcess> = pids
        .iter()
        .filter_map(|pid| Some((*pid, of_process(*pid)?)))
        .collect();
    (!all.is_empty()).then_some(CpuReading(all))
}

/// Microseconds between two readings. A process that is only in the later one began in between; one
/// that ended shows in its parent's time.
pub fn between(before: &CpuReading, after: &CpuReading) -> u64 {
    let spent = |(pid, after): (&u32, &CpuOfProcess)| {
        let before = before.0.get(pid).copied().unwrap_or_default();
        after.own_us.saturating_sub(before.own_us)
            + after
                .ended_children_us
                .saturating_sub(before.ended_children_us)
    };
    after.0.iter().map(spent).sum()
}

fn of_process(pid: u32) -> Option<CpuOfProcess> {
    let process = Process::new(i32::try_from(pid).ok()?).ok()?;
    let stat = process.stat().ok()?;
    let tick_us = 1_000_000 / procfs::ticks_per_second();
    let ticks_us = (stat.utime + stat.stime) * tick_us;
    // Nanoseconds by thread where the kernel has them, because a tick is 10 ms. Threads that ended
    // are only in the ticks, so the larger of the two is nearer.
    let threads_ns: u64 = process
        .tasks()
        .ok()?
        .flatten()
        .filter_map(|task| task.schedstat().ok())
        .map(|s| s.sum_exec_runtime)
        .sum();
    let ended = u64::try_from(stat.cutime + stat.cstime).unwrap_or(0);
    Some(CpuOfProcess {
        own_us: ticks_us.max(threads_ns / 1000),
        ended_children_us: ended * tick_us,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A process that does `script` until it is dropped.
    fn child(script: &str) -> tokio::process::Child {
        let mut shell = tokio::process::Command::new("sh");
        shell.args(["-c", script]).kill_on_drop(true);
        shell.spawn().expect("sh is there")
    }

    #[tokio::test]
    async fn work_shows_and_waiting_does_not() {
        let (worker, sleeper) = (child("while :; do :; done"), child("exec sleep 60"));
        let busy = [worker.id().expect("it runs")];
        let idle = [sleeper.id().expect("it runs")];
        let before = (read(&busy).expect("it runs"), read(&idle).expect("it runs"));
        let worked = async {
            while between(&before.0, &read(&busy).expect("it runs")) < 50_000 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(30), worked).await;
        assert!(in_time.is_ok(), "50 ms of work do not show");
        let waited = between(&before.1, &read(&idle).expect("it runs"));
        assert!(waited < 20_000, "{waited} us for a process that sleeps");
    }

    #[test]
    fn no_process_is_no_reading() {
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[u32::MAX]), None);
    }
}
