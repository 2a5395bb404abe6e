export const timelineView = { show() {}, hide() {}, update() {} };
