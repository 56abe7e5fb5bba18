//! The service's processes, each with its roles: started, killed, paused, and asked what they counted.

use std::sync::RwLock;
use std::time::Duration;

use flashlock::lab::process::Signal;
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::sync::Mutex;

use super::counts::Counts;
use crate::world::{Api, Service};

/// One that meets a cut while it starts is started again, as a supervisor would.
const STARTS_MAX: u32 = 20;
/// A process that is asked for its counters before it is killed.
const ANSWER: Duration = Duration::from_secs(1);

/// What a process is started with.
pub(super) struct Post {
    pub(super) name: &'static str,
    pub(super) roles: &'static str,
    pub(super) database_url: String,
    pub(super) redis_url: String,
}

pub(super) struct Member {
    pub(super) name: &'static str,
    env: Vec<(String, String)>,
    /// Held by whoever kills or pauses it.
    service: Mutex<Service>,
    api: RwLock<Api>,
}

pub(super) struct Crew {
    pub(super) members: Vec<Member>,
    /// What processes counted that were killed or dismissed.
    of_the_dead: Counts,
}

// === impl Crew ===

impl Crew {
    pub(super) async fn start(posts: Vec<Post>) -> Self {
        let starts = posts.into_iter().map(Member::start);
        Self {
            members: futures::future::join_all(starts).await,
            of_the_dead: Counts::default(),
        }
    }

    /// A process that answers buyers.
    pub(super) fn api(&self, rng: &mut StdRng) -> Api {
        let apis = self.named("api");
        apis[rng.random_range(0..apis.len())].api()
    }

    pub(super) fn named(&self, name: &str) -> Vec<&Member> {
        let named = self.members.iter().filter(|m| m.name.starts_with(name));
        named.collect()
    }

    /// Kills one of `members` and starts it again, unless it is paused.
    pub(super) async fn kill_one(&self, members: &[&Member], rng: &mut StdRng) -> bool {
        let member = members[rng.random_range(0..members.len())];
        let Ok(mut service) = member.service.try_lock() else {
            return false;
        };
        note_counters(member, &self.of_the_dead).await;
        service.kill().await;
        *service = member.start_again().await;
        true
    }

    /// Ends those of this name for good.
    pub(super) async fn dismiss(&self, name: &str) {
        for member in self.named(name) {
            note_counters(member, &self.of_the_dead).await;
            member.service.lock().await.kill().await;
        }
    }

    /// Stops a process where it stands, and lets it go on after `pause`.
    pub(super) async fn pause(&self, member: &Member, pause: Duration) {
        let service = member.service.lock().await;
        service.signal(Signal::STOP);
        tokio::time::sleep(pause).await;
        service.signal(Signal::CONT);
    }

    /// What all processes have counted so far.
    pub(super) async fn counted(&self) -> Counts {
        let counted = self.of_the_dead.copy();
        for member in &self.members {
            note_counters(member, &counted).await;
        }
        counted
    }
}

async fn note_counters(member: &Member, counted: &Counts) {
    let api = member.api();
    let Ok(Ok(answer)) = tokio::time::timeout(ANSWER, api.try_get("/metrics")).await else {
        return;
    };
    for line in answer.body.as_str().unwrap_or_default().lines() {
        if let Some((name, value)) = line.rsplit_once(' ')
            && name.contains("_total")
            && let Ok(n) = value.parse::<u64>()
        {
            counted.add(name, n);
        }
    }
}

// === impl Member ===

impl Member {
    async fn start(post: Post) -> Self {
        let set = |name: &str, value: &str| (format!("FLASHLOCK_{name}"), value.to_string());
        let env = vec![
            set("ROLES", post.roles),
            set("DATABASE_URL", &post.database_url),
            set("REDIS_URL", &post.redis_url),
            set("DATABASE_CONNECTIONS_MAX", "8"),
            set("LOG", "warn"),
        ];
        let service = start(&env).await;
        Self {
            name: post.name,
            env,
            api: RwLock::new(service.api.clone()),
            service: Mutex::new(service),
        }
    }

    async fn start_again(&self) -> Service {
        let service = start(&self.env).await;
        *self.api.write().expect("no panic") = service.api.clone();
        service
    }

    pub(super) fn api(&self) -> Api {
        self.api.read().expect("no panic").clone()
    }

    /// What it has said since it was started.
    pub(super) async fn log(&self) -> String {
        self.service.lock().await.log()
    }
}

async fn start(env: &[(String, String)]) -> Service {
    let mut said = String::new();
    for _ in 0..STARTS_MAX {
        match Service::try_start(env).await {
            Ok(service) => return service,
            Err(log) => said = log,
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("a service did not start {STARTS_MAX} times: {said}");
}
