-- A refund that the provider refuses is for an operator, and not tried again before they ask for it.
ALTER TABLE payments ADD COLUMN refused text; -- why; in state 'refunding'

-- Old events are forgotten. They come in the order of their age, for which this kind is tiny.
CREATE INDEX webhook_events_by_age ON webhook_events USING brin (received_at);
