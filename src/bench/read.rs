//! What do the stores say once a sale has come to rest?

use std::time::Duration;

use super::check::{GateSku, GateState, Reading};
use crate::clock;
use crate::keys::GateKeys;
use crate::sale::{ActivityId, Sku};
use crate::script::gate::GateScripts;
use crate::store::{FinalState, Store, StoreOptions};

/// Reading is one connection's work.
const CONNECTIONS_MAX: u32 = 2;
/// The last holds are settled by the relay's next passes.
const REST_WAIT: Duration = Duration::from_secs(10);
const REST_PAUSE: Duration = Duration::from_millis(50);
/// One answer of a Redis on this machine.
const REDIS_WAIT: Duration = Duration::from_secs(5);

/// Every row of the activity, over connections of this process.
pub async fn database(url: &str, activity: &ActivityId) -> Reading<FinalState> {
    let options = StoreOptions {
        url: url.to_string(),
        connections_max: CONNECTIONS_MAX,
    };
    let store = match Store::open(&options).await {
        Ok(store) => store,
        Err(error) => return Reading::Failed(error.to_string()),
    };
    let state = store.final_state(activity).await;
    store.close().await;
    match state {
        Ok(state) => Reading::Read(state),
        Err(error) => Reading::Failed(error.to_string()),
    }
}

/// Waits until the gate has no open hold, up to a bound, so that what is read afterwards is at rest.
pub async fn rest(redis_url: &str, activity: &ActivityId) {
    let ends = clock::now() + REST_WAIT;
    while clock::now() < ends {
        match gate(redis_url, activity).await {
            Reading::Read(state) if state.holds == 0 => return,
            Reading::Read(_) | Reading::NotUsed | Reading::Failed(_) => {
                tokio::time::sleep(REST_PAUSE).await;
            }
        }
    }
}

/// The gate's counts, all of one instant.
pub async fn gate(redis_url: &str, activity: &ActivityId) -> Reading<GateState> {
    match tokio::time::timeout(REDIS_WAIT, gate_state(redis_url, activity)).await {
        Ok(Ok(state)) => Reading::Read(state),
        Ok(Err(why)) => Reading::Failed(why),
        Err(_elapsed) => Reading::Failed("Redis did not answer".to_string()),
    }
}

async fn gate_state(redis_url: &str, activity: &ActivityId) -> Result<GateState, String> {
    let client = redis::Client::open(redis_url).map_err(|e| e.to_string())?;
    let mut connection = client
        .get_multiplexed_async_connection()
        .await
        .map_err(|e| e.to_string())?;
    let keys = GateKeys::of(activity);
    let audit = GateScripts::default()
        .audit(&mut connection, &keys)
        .await
        .map_err(|e| e.to_string())?;
    if audit.skus.is_empty() {
        return Err("the gate has no key of this activity".to_string());
    }
    let skus = audit
        .skus
        .into_iter()
        .map(|count| {
            Ok(GateSku {
                sku: count.sku.parse::<Sku>().map_err(|e| e.to_string())?,
                total: count.total,
                stock: count.stock,
                pending: count.pending,
                committed: count.committed,
            })
        })
        .collect::<Result<_, String>>()?;
    Ok(GateState {
        skus,
        holds: audit.holds,
    })
}
