//! The servers all tests share, service processes on them, and a client that speaks to those.

use std::future::Future;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use flashlock::lab::process::{EndSignal, Stdout, Ward, WardSpec};
use flashlock::lab::{DatabaseKind, Lab, LabPlan};
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// The databases, as tests name them.
pub(crate) const DATABASES: [&str; 3] = ["sqlite", "postgres", "mysql"];
/// A debug build on a busy machine starts within this.
const START: Duration = Duration::from_secs(30);

/// The lab of this test process, with a runtime of its own: a test's runtime ends with the test.
pub(crate) struct World {
    pub(crate) lab: Lab,
    runtime: Runtime,
}

/// A running service process.
pub(crate) struct Service {
    ward: Ward,
    log: PathBuf,
    pub(crate) api: Api,
}

/// How a process is started: `flashlock` with these arguments, variables and working directory.
#[derive(Debug, Default)]
pub(crate) struct Start {
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) dir: Option<PathBuf>,
}

/// A service that ended instead of listening.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) code: i32,
    pub(crate) said: String,
}

/// A client of one service process.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) url: String,
    client: reqwest::Client,
    token: Option<String>,
}

/// What the service answered.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

/// Starts the servers on first use. They end with this process.
pub(crate) fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        // A thread of its own, since a test may already be inside a runtime.
        std::thread::spawn(|| {
            let runtime = Runtime::new().expect("a runtime");
            let lab = runtime
                .block_on(Lab::start(&LabPlan::all()))
                .expect("the lab starts");
            World { lab, runtime }
        })
        .join()
        .expect("the lab starts")
    })
}

impl World {
    /// Runs `future` on the lab's runtime: what it starts outlives the test that asks for it.
    pub(crate) async fn keep<T: Send + 'static>(
        &'static self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> T {
        self.runtime.spawn(future).await.expect("no panic")
    }

    /// The URL of a fresh database of this kind.
    pub(crate) async fn database(&'static self, kind: &str) -> String {
        let name = format!("t{}", uuid::Uuid::now_v7().simple());
        let kind = match kind {
            "sqlite" => {
                let file = self.lab.directory().join(format!("{name}.db"));
                return format!("sqlite:{}", file.display());
            }
            "postgres" => DatabaseKind::Postgres,
            "mysql" => DatabaseKind::Mysql,
            other => panic!("there is no database kind {other}"),
        };
        // On the lab's runtime: what it spawns must outlive this test.
        let made = self
            .runtime
            .spawn(async move { self.lab.create_database(kind, &name).await });
        made.await.expect("no panic").expect("a fresh database")
    }

    /// A fresh, empty directory.
    pub(crate) fn directory(&self) -> PathBuf {
        let path = self
            .lab
            .directory()
            .join(uuid::Uuid::now_v7().simple().to_string());
        std::fs::create_dir(&path).expect("a directory");
        path
    }

    /// The options of a service that has every server of the lab.
    pub(crate) fn everything(&self, database_url: &str) -> Vec<(String, String)> {
        let set = |name: &str, value: String| (format!("FLASHLOCK_{name}"), value);
        vec![
            set("DATABASE_URL", database_url.to_string()),
            set("REDIS_URL", self.lab.redis_url().expect("redis runs")),
            set(
                "REDLOCK_URLS",
                self.lab
                    .redlock_urls()
                    .expect("redlock's nodes run")
                    .join(","),
            ),
            set("ZOOKEEPER", self.lab.zookeeper().expect("zookeeper runs")),
            set("ALLOW_CONTROL", "true".to_string()),
        ]
    }
}

impl Service {
    /// Starts `flashlock serve` and waits until it listens.
    pub(crate) async fn start(env: &[(String, String)]) -> Self {
        match Self::try_start(env).await {
            Ok(service) => service,
            Err(log) => panic!("the service did not start: {log}"),
        }
    }

    /// The same; `Err` is what it said before it ended.
    pub(crate) async fn try_start(env: &[(String, String)]) -> Result<Self, String> {
        let start = Start {
            env: env.to_vec(),
            ..Start::default()
        };
        Self::start_with(&start)
            .await
            .map_err(|refused| refused.said)
    }

    /// The same with arguments and a working directory. It listens on a free port of loopback
    /// unless `start` says otherwise.
    pub(crate) async fn start_with(start: &Start) -> Result<Self, Refused> {
        let log = world()
            .lab
            .directory()
            .join(format!("{}.log", uuid::Uuid::now_v7()));
        let mut spec = WardSpec::new(env!("CARGO_BIN_EXE_flashlock"), &log)
            .arg("serve")
            .args(start.args.clone())
            .env("FLASHLOCK_LISTEN", "127.0.0.1:0")
            .stdout(Stdout::Lines)
            .end(EndSignal::Kill);
        for (name, value) in &start.env {
            spec = spec.env(name, value);
        }
        if let Some(dir) = &start.dir {
            spec = spec.dir(dir);
        }
        let mut ward = Ward::spawn(&spec).await.expect("sh is there");
        let line = tokio::time::timeout(START, ward.next_line()).await;
        let said = || std::fs::read_to_string(&log).unwrap_or_default();
        let Ok(Some(line)) = line else {
            let ended = tokio::time::timeout(START, ward.ended()).await;
            return Err(Refused {
                code: ended.unwrap_or(-1),
                said: said(),
            });
        };
        let url = line.strip_prefix("listening on ");
        let url = url.unwrap_or_else(|| panic!("{line}: {}", said()));
        Ok(Self {
            ward,
            api: Api::new(url.to_string()),
            log,
        })
    }

    /// What it has said on stderr so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Kills it, as a crash would.
    pub(crate) async fn kill(&self) {
        assert!(
            self.ward.kill(Duration::from_secs(5)).await,
            "it could not be killed"
        );
    }

    /// Asks it to stop, and waits until it has.
    pub(crate) async fn stop(&self, wait: Duration) -> bool {
        self.ward.signal(flashlock::lab::process::Signal::TERM);
        tokio::time::timeout(wait, self.ward.ended())
            .await
            .is_ok_and(|code| code == 0)
    }

    pub(crate) fn signal(&self, signal: flashlock::lab::process::Signal) {
        self.ward.signal(signal);
    }
}

impl Api {
    pub(crate) fn new(url: String) -> Self {
        let client = reqwest::Client::builder()
            .timeout(Duration::from_secs(30))
            .build()
            .expect("a client");
        Self {
            url,
            client,
            token: None,
        }
    }

    /// The same service through connections of its own: those of a client end with the test that
    /// made them.
    pub(crate) fn afresh(&self) -> Self {
        Self {
            token: self.token.clone(),
            ..Self::new(self.url.clone())
        }
    }

    pub(crate) fn with_token(&self, token: &str) -> Self {
        Self {
            token: Some(token.to_string()),
            ..self.clone()
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.try_get(path).await.expect("an answer")
    }

    pub(crate) async fn try_get(&self, path: &str) -> Result<Answer, reqwest::Error> {
        self.send(self.client.get(format!("{}{path}", self.url)))
            .await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.try_post(path, body).await.expect("an answer")
    }

    pub(crate) async fn try_post(&self, path: &str, body: Value) -> Result<Answer, reqwest::Error> {
        let request = self.client.post(format!("{}{path}", self.url));
        self.send(request.body(body.to_string())).await
    }

    /// A request that is put together by hand.
    pub(crate) fn request(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url))
    }

    pub(crate) async fn send(
        &self,
        request: reqwest::RequestBuilder,
    ) -> Result<Answer, reqwest::Error> {
        let request = match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        let response = request.send().await?;
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let text = response.text().await?;
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Ok(Answer {
            status,
            headers,
            body,
        })
    }

    pub(crate) async fn buy(
        &self,
        activity: &str,
        user: &str,
        key: &str,
        lines: &[(&str, i64)],
    ) -> Answer {
        self.try_buy(activity, user, key, lines)
            .await
            .expect("an answer")
    }

    pub(crate) async fn try_buy(
        &self,
        activity: &str,
        user: &str,
        key: &str,
        lines: &[(&str, i64)],
    ) -> Result<Answer, reqwest::Error> {
        let lines: Vec<Value> = lines
            .iter()
            .map(|(sku, quantity)| json!({"sku": sku, "quantity": quantity}))
            .collect();
        let body = json!({"user_id": user, "lines": lines});
        let request = self
            .request(
                reqwest::Method::POST,
                &format!("/v1/activities/{activity}/orders"),
            )
            .header("Idempotency-Key", key)
            .body(body.to_string());
        self.send(request).await
    }

    /// Buys until the answer is final: 503 means the same key again.
    pub(crate) async fn buy_surely(
        &self,
        activity: &str,
        user: &str,
        key: &str,
        lines: &[(&str, i64)],
    ) -> Answer {
        for _ in 0..100 {
            let answer = self.buy(activity, user, key, lines).await;
            if answer.status != 503 {
                return answer;
            }
            assert_eq!(answer.body["retry_with_same_key"], true, "{answer:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{user} got 503 a hundred times");
    }

    /// Creates an activity of `body`, warms it up and opens it; its id.
    pub(crate) async fn open(&self, body: Value) -> String {
        let id = self.create(body).await;
        for step in ["warm-up", "open"] {
            let answer = self
                .post(&format!("/v1/activities/{id}/{step}"), Value::Null)
                .await;
            assert_eq!(answer.status, 200, "{step}: {answer:?}");
        }
        id
    }

    /// Creates an activity of `body`; its id. Without rate limits, unless it names them: a test's
    /// buyers click faster than buyers do.
    pub(crate) async fn create(&self, mut body: Value) -> String {
        if body.get("limits").is_none() {
            body["limits"] = Value::Null;
        }
        let answer = self.post("/v1/activities", body).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.body["id"].as_str().expect("an id").to_string()
    }

    /// The sum of the metric's series whose line contains each of `labels`; 0 without any.
    pub(crate) async fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let answer = self.get("/metrics").await;
        let text = answer.body.as_str().unwrap_or_default().to_string();
        let series = text.lines().filter(|line| {
            let rest = line.strip_prefix(name);
            let is_it = rest.is_some_and(|rest| rest.starts_with([' ', '{']));
            is_it && labels.iter().all(|label| line.contains(label))
        });
        series
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }

    /// (total, available, held, sold) of the activity's SKU.
    pub(crate) async fn stock(&self, activity: &str, sku: &str) -> (i64, i64, i64, i64) {
        let answer = self.get(&format!("/v1/activities/{activity}")).await;
        let skus = answer.body["skus"].as_array().cloned().unwrap_or_default();
        let of = skus
            .iter()
            .find(|s| s["sku"] == sku)
            .unwrap_or_else(|| panic!("no {sku} in {answer:?}"));
        let n = |name: &str| of[name].as_i64().expect("a number");
        (n("total"), n("available"), n("held"), n("sold"))
    }
}

impl Answer {
    /// The problem's name, such as `sold-out`; empty when it is no problem.
    pub(crate) fn problem(&self) -> &str {
        self.body["type"]
            .as_str()
            .and_then(|t| t.strip_prefix("/problems/"))
            .unwrap_or("")
    }

    pub(crate) fn order_id(&self) -> String {
        self.body["id"]
            .as_str()
            .unwrap_or_else(|| panic!("no order in {self:?}"))
            .to_string()
    }

    /// Asserts the whole of a problem: status, type, media type, and a detail that says `says`.
    #[track_caller]
    pub(crate) fn assert_problem(&self, status: u16, name: &str, says: &str) {
        assert_eq!((self.status, self.problem()), (status, name), "{self:?}");
        assert_eq!(
            self.headers["content-type"], "application/problem+json",
            "{self:?}"
        );
        assert_eq!(self.body["status"], status, "{self:?}");
        let detail = self.body["detail"].as_str().unwrap_or_default();
        assert!(detail.contains(says), "{detail:?} does not say {says:?}");
    }
}
