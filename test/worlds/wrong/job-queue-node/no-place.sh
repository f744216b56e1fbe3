# A retried job goes to the end of its equals.
reference
sed -i 's/else if (entry.attempts <= this.#retries) this.#enqueue(entry);/else if (entry.attempts <= this.#retries) { entry.order = this.#order++; this.#enqueue(entry); }/' /app/queue.js
