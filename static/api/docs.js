"use strict";

// A file of its own: the content security policy allows no script in the page.
const page = document.getElementById("swagger-ui");

// Swagger UI has a dark side of its own; it follows the page's theme.
const root = document.documentElement;
const themed = () => root.classList.toggle("dark-mode", root.dataset.bsTheme === "dark");
themed();
new MutationObserver(themed).observe(root, { attributeFilter: ["data-bs-theme"] });

// A link inside a button cannot be told by those who listen to a page; the button does the same.
const plain = () => {
  for (const link of page.querySelectorAll("button a[href]")) link.removeAttribute("href");
};
new MutationObserver(plain).observe(page, { childList: true, subtree: true });

SwaggerUIBundle({
  domNode: page,
  url: page.dataset.schema,
  deepLinking: true,
  validatorUrl: null, // nothing is sent to other servers
  requestInterceptor: (request) => {
    if (request.method && request.method !== "GET") {
      request.headers["X-CSRFToken"] = page.dataset.csrf;
    }
    return request;
  },
});
