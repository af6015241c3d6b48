// What the cache would have us do, and what another pool would hold.
export async function showAdvice() { return false; }
