//! How does a process hear of a release? By pub/sub on the connection it asks on: what is published
//! after its question was answered reaches it after the answer, and the loss of the one is the loss
//! of the other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use redis::{FromRedisValue, PushInfo, PushKind, RedisResult, Value};
use tokio::sync::Notify;

use super::{Link, Live, lock};

/// Who listens to which channel.
#[derive(Debug, Default)]
pub(super) struct Channels {
    listeners: Mutex<HashMap<String, Vec<Arc<Notify>>>>,
    /// Held while a channel is subscribed or unsubscribed, so that an old listener's leaving does
    /// not overtake a new one's coming.
    changing: tokio::sync::Mutex<()>,
}

/// Hears one channel until it is dropped.
#[derive(Debug)]
pub struct Listener {
    link: Arc<Link>,
    channel: String,
    heard: Arc<Notify>,
    /// The connection on which it is subscribed; told by its mark, which dies with it.
    on: Weak<std::sync::atomic::AtomicBool>,
}

/// Whether a listener can hear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hearing {
    Subscribed,
    /// The connection is lost, or the server does not let us: nothing is heard.
    Deaf,
}

// === impl Channels ===

impl Channels {
    /// Wakes those whom a push concerns; the end of the connection concerns all.
    pub(super) fn hear(&self, push: &PushInfo) {
        if push.kind == PushKind::Message {
            if let Some(channel) = push.data.first().and_then(name) {
                let listeners = lock(&self.listeners);
                listeners.get(&channel).into_iter().flatten().for_each(wake);
            }
        } else if push.kind == PushKind::Disconnection {
            lock(&self.listeners).values().flatten().for_each(wake);
        }
    }

    fn add(&self, channel: &str, listener: Arc<Notify>) {
        let mut listeners = lock(&self.listeners);
        listeners
            .entry(channel.to_string())
            .or_default()
            .push(listener);
    }

    fn remove(&self, channel: &str, listener: &Arc<Notify>) {
        let mut listeners = lock(&self.listeners);
        if let Some(present) = listeners.get_mut(channel) {
            present.retain(|one| !Arc::ptr_eq(one, listener));
            if present.is_empty() {
                listeners.remove(channel);
            }
        }
    }
}

/// One message at least is kept for a listener that is not waiting at the moment.
fn wake(listener: &Arc<Notify>) {
    listener.notify_one();
}

fn name(value: &Value) -> Option<String> {
    String::from_redis_value_ref(value).ok()
}

// === impl Listener ===

impl Listener {
    pub(super) fn new(link: Arc<Link>, channel: String) -> Self {
        let heard = Arc::new(Notify::new());
        link.channels.add(&channel, heard.clone());
        Self {
            link,
            channel,
            heard,
            on: Weak::new(),
        }
    }

    /// Resolves when something was published, or the connection was lost, since it last did.
    pub async fn heard(&self) {
        self.heard.notified().await;
    }

    pub fn hearing(&self) -> Hearing {
        let subscribed = self
            .on
            .upgrade()
            .is_some_and(|dead| !dead.load(std::sync::atomic::Ordering::Acquire));
        if subscribed {
            Hearing::Subscribed
        } else {
            Hearing::Deaf
        }
    }

    /// Runs `call` on `live`, on which it is subscribed first. The server answers in the order of
    /// sending, so nothing is missed between the two.
    pub(super) async fn subscribed<T>(
        &mut self,
        live: &Live,
        call: impl Future<Output = RedisResult<T>>,
    ) -> RedisResult<T> {
        let is_subscribed = self
            .on
            .upgrade()
            .is_some_and(|on| Arc::ptr_eq(&on, &live.dead));
        if is_subscribed {
            return call.await;
        }
        let _changing = self.link.channels.changing.lock().await;
        let mut connection = live.connection.clone();
        let (subscribed, answer) = tokio::join! {
            biased;
            connection.subscribe(&self.channel),
            call,
        };
        if subscribed.is_ok() {
            self.on = Arc::downgrade(&live.dead);
        }
        answer
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.link.channels.remove(&self.channel, &self.heard);
        let (link, channel) = (self.link.clone(), self.channel.clone());
        // Spawned because drop cannot wait. Without a runtime the connection has ended too.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { link.unsubscribe(&channel).await });
        }
    }
}

// === impl Link ===

impl Link {
    /// Leaves a channel to which nobody listens. A failure does no harm: what is heard of it is
    /// heard by nobody.
    async fn unsubscribe(&self, channel: &str) {
        let _changing = self.channels.changing.lock().await;
        if lock(&self.channels.listeners).contains_key(channel) {
            return;
        }
        if let Some(mut live) = self.present() {
            drop(live.connection.unsubscribe(channel).await);
        }
    }
}
