//! What must be so of a Redis that keeps locks or the gate, read from `INFO`.

use std::collections::HashMap;

use futures::future::join_all;

use super::Judged;
use crate::script::node::{Node, RESPONSE_TIMEOUT};

/// Before this version script caches were replicated, and scripts could not say in their text that
/// they write: a gate would not notice that it is not the Redis it was opened on.
const GATE_MAJOR_MIN: u32 = 7;

/// What a Redis says of itself; `None` where it does not, as some hosted ones.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Told {
    version: Option<String>,
    run_id: Option<String>,
    eviction: Option<String>,
    append_only: Option<String>,
}

// === impl Told ===

impl Told {
    fn read(info: &str) -> Self {
        let field = |name: &str| {
            let mut lines = info.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.map(|value| value.trim().to_string())
        };
        Self {
            version: field("redis_version"),
            run_id: field("run_id"),
            eviction: field("maxmemory_policy"),
            append_only: field("aof_enabled"),
        }
    }

    /// Why locks and holds would not last here.
    fn evicts(&self, named: &str) -> Option<String> {
        let policy = self.eviction.as_deref()?;
        (policy != "noeviction").then(|| {
            format!(
                "{named} has maxmemory-policy {policy}, which throws away locks and holds when memory \
                 is short, and the stock is then sold twice; set it to noeviction, or keep \
                 them in a Redis of their own"
            )
        })
    }

    /// Why the gate would not notice that it lost its history.
    fn too_old(&self, named: &str) -> Option<String> {
        let version = self.version.as_deref()?;
        let major = version.split('.').next()?.parse::<u32>();
        major.is_ok_and(|major| major < GATE_MAJOR_MIN).then(|| {
            format!(
                "{named} is Redis {version}, and {GATE_MAJOR_MIN} or later is needed: an older one \
                     replicates its script cache, so that a gate does not notice a failover that \
                     lost holds; upgrade it"
            )
        })
    }

    fn untold(&self, named: &str) -> Vec<String> {
        let fields = [
            ("redis_version", &self.version),
            ("maxmemory_policy", &self.eviction),
            ("aof_enabled", &self.append_only),
        ];
        let missing = fields.into_iter().filter(|(_, value)| value.is_none());
        missing
            .map(|(field, _)| {
                format!(
                    "{named} does not tell {field} in INFO; make sure that it is as the README asks"
                )
            })
            .collect()
    }
}

/// The Redis of `redis-set-nx` and `redis-lua`.
pub(super) async fn judge_gate(url: &str) -> Judged {
    match ask(url).await {
        Ok(told) => gate(&told),
        Err(why) => Judged::Away(why),
    }
}

fn gate(told: &Told) -> Judged {
    let named = "redis_url";
    if let Some(why) = told.too_old(named).or_else(|| told.evicts(named)) {
        return Judged::Refused(why);
    }
    let mut warnings = told.untold(named);
    if told.append_only.as_deref() == Some("0") {
        warnings.push(format!(
            "{named} has appendonly off: its restart forgets every hold and every lock; the gate is then \
             rebuilt from the database, buyers get 503 meanwhile, what was held and not booked \
             is lost to its buyer, and a lock may be held twice until its fencing token is \
             refused; set appendonly yes"
        ));
    }
    Judged::Safe { warnings }
}

/// The nodes of `redlock`.
pub(super) async fn judge_nodes(urls: &[String]) -> Judged {
    let answers = join_all(urls.iter().map(|url| ask(url))).await;
    let named: Vec<String> = urls.iter().map(|url| address(url)).collect();
    let mut seen: HashMap<String, &str> = HashMap::new();
    let mut away = None;
    for (answer, named) in answers.into_iter().zip(&named) {
        let told = match answer {
            Ok(told) => told,
            Err(why) => {
                away = Some(format!("{named}: {why}"));
                continue;
            }
        };
        if let Some(why) = told.evicts(&format!("the RedLock node {named}")) {
            return Judged::Refused(why);
        }
        let Some(run_id) = told.run_id else { continue };
        if let Some(first) = seen.insert(run_id.clone(), named) {
            return Judged::Refused(format!(
                "redlock_urls leads to one Redis by {first} and by {named} (run_id {run_id}): its \
                 vote would count twice; name independent servers"
            ));
        }
    }
    away.map_or(
        Judged::Safe {
            warnings: Vec::new(),
        },
        Judged::Away,
    )
}

async fn ask(url: &str) -> Result<Told, String> {
    let node = Node::new(url, RESPONSE_TIMEOUT).map_err(|e| e.to_string())?;
    let info: Result<String, _> = node.query(&redis::cmd("INFO")).await;
    let info = info.map_err(|e| e.to_string())?;
    Ok(Told::read(&info))
}

/// Host and port, without what the URL may keep secret.
fn address(url: &str) -> String {
    redis::Client::open(url).map_or_else(
        |_no_url| "a URL that is none".to_string(),
        |client| client.get_connection_info().addr().to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(version: &str, eviction: &str, append_only: &str) -> Told {
        Told::read(&format!(
            "# Server\r\nredis_version:{version}\r\nrun_id:abc\r\n# Memory\r\n\
             maxmemory_policy:{eviction}\r\n# Persistence\r\naof_enabled:{append_only}\r\n"
        ))
    }

    #[track_caller]
    fn assert_refused(judged: Judged, says: &[&str]) {
        let Judged::Refused(why) = judged else {
            panic!("{judged:?}");
        };
        for says in says {
            assert!(why.contains(says), "{why:?} does not say {says:?}");
        }
    }

    #[test]
    fn a_redis_older_than_7_is_refused_and_a_later_one_is_not() {
        for old in ["6.2.14", "6.0.0", "5.0.7", "2.8.24"] {
            let says = [old, "7 or later", "upgrade it"];
            assert_refused(gate(&told(old, "noeviction", "1")), &says);
        }
        let safe = Judged::Safe {
            warnings: Vec::new(),
        };
        for new in ["7.0.0", "7.4.1", "8.0.2", "10.0.0", "255.255.255"] {
            assert_eq!(gate(&told(new, "noeviction", "1")), safe, "{new}");
        }
    }

    #[test]
    fn what_throws_keys_away_is_refused_and_what_forgets_them_is_warned_about() {
        for policy in [
            "allkeys-lru",
            "volatile-ttl",
            "volatile-lru",
            "allkeys-random",
        ] {
            assert_refused(gate(&told("7.0.15", policy, "1")), &[policy, "noeviction"]);
        }
        let Judged::Safe { warnings } = gate(&told("7.0.15", "noeviction", "0")) else {
            panic!("without AOF it is warned about");
        };
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].contains("set appendonly yes"), "{warnings:?}");
    }

    #[test]
    fn what_a_redis_does_not_tell_is_said() {
        let Judged::Safe { warnings } = gate(&Told::read("# Server\r\nredis_mode:hosted\r\n"))
        else {
            panic!("it is not known to be unsafe");
        };
        assert_eq!(warnings.len(), 3, "{warnings:?}");
        assert_eq!(Told::read(""), Told::default());
    }
}
