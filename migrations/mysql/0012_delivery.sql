-- Up to when the events that were published are known to have had their effect at a consumer: those behind
-- may have been lost with the broker. `next_at` is when the next look is due.
CREATE TABLE delivery (
  consumer VARCHAR(64) NOT NULL PRIMARY KEY,
  checked_until BIGINT NOT NULL,
  next_at BIGINT NOT NULL
);
