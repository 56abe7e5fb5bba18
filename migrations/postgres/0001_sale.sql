-- The tables of a sale. Times are Unix milliseconds, flags and counts are BIGINT, ids are text:
-- the types that every driver decodes alike.
-- No foreign key leads to `activity` or `activity_sku`: each purchase would share-lock their hot rows.

CREATE TABLE activity (
  id VARCHAR(36) NOT NULL PRIMARY KEY,
  state VARCHAR(16) NOT NULL,
  strategy VARCHAR(32) NOT NULL,
  guard_mode VARCHAR(16) NOT NULL,
  batch_max BIGINT NOT NULL CHECK (batch_max >= 1),
  booking VARCHAR(16) NOT NULL,
  lock_ttl_ms BIGINT NOT NULL,
  lock_wait_ms BIGINT NOT NULL,
  lock_watchdog VARCHAR(16) NOT NULL,
  limits TEXT NOT NULL,
  opens_at BIGINT NOT NULL,
  closes_at BIGINT NOT NULL,
  pay_window_s BIGINT NOT NULL CHECK (pay_window_s >= 1),
  units_per_user_max BIGINT NOT NULL CHECK (units_per_user_max >= 1),
  fence_generation BIGINT NOT NULL DEFAULT 0,
  gate_epoch BIGINT NOT NULL DEFAULT 0,
  gate_run_id VARCHAR(64) NOT NULL DEFAULT '',
  created_at BIGINT NOT NULL,
  CHECK (opens_at < closes_at)
);

-- `fence_generation, fence`: the youngest claim; an older holder's write finds another pair here.
CREATE TABLE activity_sku (
  activity_id VARCHAR(36) NOT NULL,
  sku VARCHAR(64) NOT NULL,
  total BIGINT NOT NULL,
  available BIGINT NOT NULL,
  fence_generation BIGINT NOT NULL DEFAULT 0,
  fence BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (activity_id, sku),
  CHECK (total >= 1),
  CHECK (available >= 0 AND available <= total)
) WITH (fillfactor = 50);

-- `live_key` is the user while the order is live and NULL after: one live order per activity and user.
CREATE TABLE orders (
  id VARCHAR(36) NOT NULL PRIMARY KEY,
  activity_id VARCHAR(36) NOT NULL,
  user_id VARCHAR(64) NOT NULL,
  live_key VARCHAR(64) NULL,
  state VARCHAR(16) NOT NULL CHECK (state IN ('PENDING_PAYMENT', 'PAID', 'CLOSED', 'REJECTED', 'ABANDONED')),
  close_reason VARCHAR(16) NULL,
  fingerprint VARCHAR(64) NOT NULL,
  created_at BIGINT NOT NULL,
  pay_deadline BIGINT NOT NULL,
  paid_at BIGINT NULL,
  closed_at BIGINT NULL,
  version BIGINT NOT NULL DEFAULT 0,
  CONSTRAINT orders_one_live UNIQUE (activity_id, live_key)
);
CREATE INDEX orders_due ON orders (state, pay_deadline);

CREATE TABLE order_line (
  order_id VARCHAR(36) NOT NULL,
  sku VARCHAR(64) NOT NULL,
  quantity BIGINT NOT NULL CHECK (quantity > 0),
  PRIMARY KEY (order_id, sku),
  FOREIGN KEY (order_id) REFERENCES orders (id)
);

-- Append-only: what each order took (DEDUCT) and gave back (RELEASE), each at most once.
CREATE TABLE stock_ledger (
  seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  activity_id VARCHAR(36) NOT NULL,
  sku VARCHAR(64) NOT NULL,
  order_id VARCHAR(36) NOT NULL,
  kind VARCHAR(16) NOT NULL CHECK (kind IN ('DEDUCT', 'RELEASE')),
  quantity BIGINT NOT NULL CHECK (quantity > 0),
  created_at BIGINT NOT NULL,
  CONSTRAINT stock_ledger_once UNIQUE (order_id, sku, kind)
);
CREATE INDEX stock_ledger_activity ON stock_ledger (activity_id, seq);

CREATE TABLE outbox (
  id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  event_id VARCHAR(36) NOT NULL UNIQUE,
  activity_id VARCHAR(36) NOT NULL,
  aggregate_id VARCHAR(36) NOT NULL,
  kind VARCHAR(32) NOT NULL,
  payload TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  next_at BIGINT NOT NULL,
  attempts BIGINT NOT NULL DEFAULT 0,
  lease_token VARCHAR(36) NULL,
  lease_until BIGINT NULL,
  published_at BIGINT NULL,
  dead_at BIGINT NULL,
  last_error TEXT NULL
);
CREATE INDEX outbox_due ON outbox (published_at, dead_at, next_at);
CREATE INDEX outbox_aggregate ON outbox (aggregate_id);

CREATE TABLE inbox (
  consumer VARCHAR(64) NOT NULL,
  event_id VARCHAR(36) NOT NULL,
  created_at BIGINT NOT NULL,
  PRIMARY KEY (consumer, event_id)
);

CREATE TABLE payment (
  id VARCHAR(36) NOT NULL PRIMARY KEY,
  order_id VARCHAR(36) NOT NULL,
  provider VARCHAR(64) NOT NULL,
  provider_txn VARCHAR(128) NOT NULL,
  outcome VARCHAR(16) NOT NULL CHECK (outcome IN ('APPLIED', 'REFUND_DUE')),
  created_at BIGINT NOT NULL,
  CONSTRAINT payment_once UNIQUE (provider, provider_txn),
  FOREIGN KEY (order_id) REFERENCES orders (id)
);

CREATE TABLE refund (
  payment_id VARCHAR(36) NOT NULL PRIMARY KEY,
  order_id VARCHAR(36) NOT NULL,
  state VARCHAR(16) NOT NULL CHECK (state IN ('DUE', 'DONE')),
  created_at BIGINT NOT NULL,
  FOREIGN KEY (payment_id) REFERENCES payment (id)
);

CREATE TABLE compensation (
  rid VARCHAR(36) NOT NULL,
  kind VARCHAR(32) NOT NULL,
  activity_id VARCHAR(36) NOT NULL,
  state VARCHAR(16) NOT NULL,
  attempts BIGINT NOT NULL DEFAULT 0,
  next_at BIGINT NOT NULL,
  last_error TEXT NULL,
  created_at BIGINT NOT NULL,
  PRIMARY KEY (rid, kind)
);

-- The lock of `db-unique-insert`: the row's presence is the lock, so it goes when it is released.
CREATE TABLE distributed_lock (
  lock_key VARCHAR(128) NOT NULL PRIMARY KEY,
  owner_token VARCHAR(36) NOT NULL,
  expires_at BIGINT NOT NULL
);

-- The lock's last fencing token; it stays when the lock row goes.
CREATE TABLE lock_fence (
  lock_key VARCHAR(128) NOT NULL PRIMARY KEY,
  last BIGINT NOT NULL
);

CREATE TABLE recon_run (
  id VARCHAR(36) NOT NULL PRIMARY KEY,
  activity_id VARCHAR(36) NOT NULL,
  verdict VARCHAR(16) NOT NULL,
  started_at BIGINT NOT NULL,
  ended_at BIGINT NULL
);

CREATE TABLE recon_finding (
  run_id VARCHAR(36) NOT NULL,
  rid VARCHAR(36) NOT NULL,
  finding VARCHAR(32) NOT NULL,
  repaired BIGINT NOT NULL DEFAULT 0,
  reason TEXT NOT NULL,
  PRIMARY KEY (run_id, rid, finding),
  FOREIGN KEY (run_id) REFERENCES recon_run (id)
);
