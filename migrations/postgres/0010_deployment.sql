-- Which deployment this database belongs to: brokers that several share keep their events apart by it.
CREATE TABLE deployment (
  only_one BIGINT NOT NULL PRIMARY KEY CHECK (only_one = 1),
  id VARCHAR(36) NOT NULL
);
INSERT INTO deployment (only_one, id) VALUES (1, CAST(gen_random_uuid() AS VARCHAR(36)));
