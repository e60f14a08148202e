"use strict";

// A file of its own: the content security policy allows no script in the page.
const page = document.getElementById("swagger-ui");

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
