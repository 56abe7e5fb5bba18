//! How is a server of the lab broken, and mended?

use futures::stream::{FuturesUnordered, StreamExt};

use super::process::Signal;
use super::{Lab, LabError, ServerId};

// === impl Lab ===

impl Lab {
    /// Kills the server with everything it forked, and waits until all are gone. Its data stays.
    pub async fn kill(&self, id: ServerId) -> Result<(), LabError> {
        if self.started(id)?.kill().await {
            return Ok(());
        }
        let why = "it did not end when killed".to_owned();
        Err(LabError::Server { id, why })
    }

    /// Starts the server again on its port and data, killing it first if it runs, and waits until
    /// it answers.
    pub async fn restart(&self, id: ServerId) -> Result<(), LabError> {
        let restarted = self.started(id)?.restart().await;
        restarted.map_err(|source| LabError::Start { id, source })
    }

    /// Stops the server's processes where they stand: connections stay open and nothing answers.
    pub fn pause(&self, id: ServerId) -> Result<(), LabError> {
        self.started(id)?.signal(Signal::STOP);
        Ok(())
    }

    /// Lets paused processes run on.
    pub fn resume(&self, id: ServerId) -> Result<(), LabError> {
        self.started(id)?.signal(Signal::CONT);
        Ok(())
    }

    /// Waits until a server that is not among `known` ends, and answers which one with its exit
    /// status and the end of its log. Never returns when there is no such server.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn first_to_end(&self, known: &[ServerId]) -> (ServerId, i32, String) {
        let mut ends: FuturesUnordered<_> = self
            .servers_started()
            .filter(|(id, _)| !known.contains(id))
            .map(|(id, server)| async move {
                let (status, log) = server.ended().await;
                (id, status, log)
            })
            .collect();
        match ends.next().await {
            Some(first) => first,
            None => std::future::pending().await,
        }
    }
}
