export const waitsView = { show() {}, hide() {}, update() {} };
