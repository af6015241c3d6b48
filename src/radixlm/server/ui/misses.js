export function showMiss() {}
