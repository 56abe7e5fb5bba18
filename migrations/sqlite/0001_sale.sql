-- The tables of a sale. Times are Unix milliseconds, flags and counts are BIGINT, ids are text:
-- the types that every driver decodes alike.
-- No foreign key leads to `activity` or `activity_sku`: each purchase would share-lock their hot rows.

CREATE TABLE activity (
  id TEXT NOT NULL PRIMARY KEY,
  state TEXT NOT NULL,
  strategy TEXT NOT NULL,
  guard_mode TEXT NOT NULL,
  batch_max BIGINT NOT NULL CHECK (batch_max >= 1),
  booking TEXT NOT NULL,
  lock_ttl_ms BIGINT NOT NULL,
  lock_wait_ms BIGINT NOT NULL,
  lock_watchdog TEXT NOT NULL,
  limits TEXT NOT NULL,
  opens_at BIGINT NOT NULL,
  closes_at BIGINT NOT NULL,
  pay_window_s BIGINT NOT NULL CHECK (pay_window_s >= 1),
  units_per_user_max BIGINT NOT NULL CHECK (units_per_user_max >= 1),
  fence_generation BIGINT NOT NULL DEFAULT 0,
  gate_epoch BIGINT NOT NULL DEFAULT 0,
  gate_run_id TEXT NOT NULL DEFAULT '',
  created_at BIGINT NOT NULL,
  CHECK (opens_at < closes_at)
);

-- `fence_generation, fence`: the youngest claim; an older holder's write finds another pair here.
CREATE TABLE activity_sku (
  activity_id TEXT NOT NULL,
  sku TEXT NOT NULL,
  total BIGINT NOT NULL,
  available BIGINT NOT NULL,
  fence_generation BIGINT NOT NULL DEFAULT 0,
  fence BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (activity_id, sku),
  CHECK (total >= 1),
  CHECK (available >= 0 AND available <= total)
);

-- `live_key` is the user while the order is live and NULL after: one live order per activity and user.
CREATE TABLE orders (
  id TEXT NOT NULL PRIMARY KEY,
  activity_id TEXT NOT NULL,
  user_id TEXT NOT NULL,
  live_key TEXT NULL,
  state TEXT NOT NULL CHECK (state IN ('PENDING_PAYMENT', 'PAID', 'CLOSED', 'REJECTED', 'ABANDONED')),
  close_reason TEXT NULL,
  fingerprint TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  pay_deadline BIGINT NOT NULL,
  paid_at BIGINT NULL,
  closed_at BIGINT NULL,
  version BIGINT NOT NULL DEFAULT 0,
  CONSTRAINT orders_one_live UNIQUE (activity_id, live_key)
);
CREATE INDEX orders_due ON orders (state, pay_deadline);

CREATE TABLE order_line (
  order_id TEXT NOT NULL,
  sku TEXT NOT NULL,
  quantity BIGINT NOT NULL CHECK (quantity > 0),
  PRIMARY KEY (order_id, sku),
  FOREIGN KEY (order_id) REFERENCES orders (id)
);

-- Append-only: what each order took (DEDUCT) and gave back (RELEASE), each at most once.
CREATE TABLE stock_ledger (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  activity_id TEXT NOT NULL,
  sku TEXT NOT NULL,
  order_id TEXT NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('DEDUCT', 'RELEASE')),
  quantity BIGINT NOT NULL CHECK (quantity > 0),
  created_at BIGINT NOT NULL,
  CONSTRAINT stock_ledger_once UNIQUE (order_id, sku, kind)
);
CREATE INDEX stock_ledger_activity ON stock_ledger (activity_id, seq);

CREATE TABLE outbox (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  event_id TEXT NOT NULL UNIQUE,
  activity_id TEXT NOT NULL,
  aggregate_id TEXT NOT NULL,
  kind TEXT NOT NULL,
  payload TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  next_at BIGINT NOT NULL,
  attempts BIGINT NOT NULL DEFAULT 0,
  lease_token TEXT NULL,
  lease_until BIGINT NULL,
  published_at BIGINT NULL,
  dead_at BIGINT NULL,
  last_error TEXT NULL
);
CREATE INDEX outbox_due ON outbox (published_at, dead_at, next_at);
CREATE INDEX outbox_aggregate ON outbox (aggregate_id);

CREATE TABLE inbox (
  consumer TEXT NOT NULL,
  event_id TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  PRIMARY KEY (consumer, event_id)
);

CREATE TABLE payment (
  id TEXT NOT NULL PRIMARY KEY,
  order_id TEXT NOT NULL,
  provider TEXT NOT NULL,
  provider_txn TEXT NOT NULL,
  outcome TEXT NOT NULL CHECK (outcome IN ('APPLIED', 'REFUND_DUE')),
  created_at BIGINT NOT NULL,
  CONSTRAINT payment_once UNIQUE (provider, provider_txn),
  FOREIGN KEY (order_id) REFERENCES orders (id)
);

CREATE TABLE refund (
  payment_id TEXT NOT NULL PRIMARY KEY,
  order_id TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('DUE', 'DONE')),
  created_at BIGINT NOT NULL,
  FOREIGN KEY (payment_id) REFERENCES payment (id)
);

CREATE TABLE compensation (
  rid TEXT NOT NULL,
  kind TEXT NOT NULL,
  activity_id TEXT NOT NULL,
  state TEXT NOT NULL,
  attempts BIGINT NOT NULL DEFAULT 0,
  next_at BIGINT NOT NULL,
  last_error TEXT NULL,
  created_at BIGINT NOT NULL,
  PRIMARY KEY (rid, kind)
);

-- The lock of `db-unique-insert`: the row's presence is the lock, so it goes when it is released.
CREATE TABLE distributed_lock (
  lock_key TEXT NOT NULL PRIMARY KEY,
  owner_token TEXT NOT NULL,
  expires_at BIGINT NOT NULL
);

-- The lock's last fencing token; it stays when the lock row goes.
CREATE TABLE lock_fence (
  lock_key TEXT NOT NULL PRIMARY KEY,
  last BIGINT NOT NULL
);

CREATE TABLE recon_run (
  id TEXT NOT NULL PRIMARY KEY,
  activity_id TEXT NOT NULL,
  verdict TEXT NOT NULL,
  started_at BIGINT NOT NULL,
  ended_at BIGINT NULL
);

CREATE TABLE recon_finding (
  run_id TEXT NOT NULL,
  rid TEXT NOT NULL,
  finding TEXT NOT NULL,
  repaired BIGINT NOT NULL DEFAULT 0,
  reason TEXT NOT NULL,
  PRIMARY KEY (run_id, rid, finding),
  FOREIGN KEY (run_id) REFERENCES recon_run (id)
);
