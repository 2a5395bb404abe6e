-- +goose Up
CREATE TABLE orders (id bigint PRIMARY KEY, paid boolean NOT NULL);

-- +goose Down
DROP TABLE orders;
