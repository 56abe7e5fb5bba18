//! What does a program do with a lock, whichever it is? Every outcome is matched.

use std::time::Duration;

use flashlock::clock;
use flashlock::lock::{AcquireError, Guard, Lock, LockKey, Released, Terms};

type Failed = Box<dyn std::error::Error>;

/// Takes the lock, works under it, and gives it back; meanwhile a rival asks for it in vain.
pub(crate) async fn hold<L: Lock>(lock: &L) -> Result<(), Failed> {
    let key = LockKey::named("nightly-report")?;
    // A lease of ten seconds that is renewed while the guard lives, and a wait of two.
    let terms = Terms {
        wait: Duration::from_secs(2),
        ..Terms::default()
    };
    let guard = match lock.acquire(&key, &terms).await {
        Ok(guard) => guard,
        Err(AcquireError::Busy) => {
            println!("busy: another holds it, and two seconds are over");
            return Ok(());
        }
        Err(AcquireError::Unavailable { server, source }) => {
            return Err(format!("{server} is away, nothing was granted: {source}").into());
        }
        Err(AcquireError::Unknown { server, source }) => {
            return Err(format!(
                "{server} did not answer, it is given back if it was granted: {source}"
            )
            .into());
        }
    };
    let valid = guard.valid_until() - clock::now();
    println!(
        "acquired: {:?}, valid for {} ms unless it is renewed",
        guard.fence(),
        valid.as_millis()
    );

    let rival = Terms {
        wait: Duration::from_millis(200),
        ..terms
    };
    match lock.acquire(&key, &rival).await {
        Err(AcquireError::Busy) => println!("a rival is told: busy"),
        Err(error) => println!("a rival is told: {error}"),
        Ok(_two_holders) => return Err("a rival was let in".into()),
    }

    // Work stops when the lease ends: from then on the lock may be another's.
    tokio::select! {
        report = work() => println!("done: {report}"),
        () = guard.lost() => println!("lost: stopped in mid-work"),
    }

    match guard.release().await {
        Released::Released => println!("released"),
        Released::NotOwner => {
            println!("the lease had ended before: what was done under it is suspect")
        }
        Released::Pending => {
            println!("no answer yet: released in the background, or by the lease's end")
        }
    }

    let next = lock.acquire(&key, &terms).await?;
    println!("the next holder: {:?}", next.fence());
    // Also without a release: a guard that is dropped is given back in the background.
    drop(next);
    let last = lock.acquire(&key, &terms).await?;
    match last.release().await {
        Released::Released => println!("and free again"),
        other @ (Released::NotOwner | Released::Pending) => println!("the end: {other:?}"),
    }
    Ok(())
}

/// What must not be done twice at once.
async fn work() -> &'static str {
    tokio::time::sleep(Duration::from_millis(300)).await;
    "the report is written"
}
