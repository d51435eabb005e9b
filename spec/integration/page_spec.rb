# frozen_string_literal: true

require "puma"
require "puma/server"

RSpec.describe "the page of red-candle serve" do
  before { skip("needs Chromium and its driver (Debian: chromium-driver)") unless Browser.there? }

  arrow_right = "\uE014"
  enter = "\uE007"
  sources = ServedModels.sources.map { |name, source| "#{name}=#{source}" }

  it "does all that it offers, by keyboard and on a phone" do
    WebServer.run("serve", *sources) do |server|
      Browser.open(width: 390, height: 800, dark: true) do |browser|
        browser.visit("#{server.base}/")
        browser.wait { browser.script("return document.querySelector('#chat-model').value") == "llm" }
        # Nothing is wider than a phone.
        expect(browser.script("return document.documentElement.scrollWidth <= window.innerWidth")).to be(true)

        browser.script("document.querySelector('#max-tokens').value = 8")
        expect(browser.text(".greeting")).to start_with("Hello! Here is llm.")
        browser.click(".example")
        browser.wait { browser.script("return document.querySelectorAll('.turn').length") == 2 }
        browser.wait { browser.script("return document.querySelector('#stop').disabled") }
        expect(browser.text(".turn.user")).to eq("What is Ruby?")
        browser.click("#reset")
        expect(browser.script("return document.querySelectorAll('.example').length")).to be >= 2
        browser.type("#say", "hi#{enter}")
        browser.wait { browser.script("return document.querySelectorAll('.turn').length") == 2 }
        browser.wait { browser.script("return document.querySelector('#stop').disabled") }
        expect(browser.text(".turn.user")).to eq("hi")
        expect(browser.text(".turn.assistant")).not_to be_empty

        browser.type("#tab-chat", arrow_right)
        expect(browser.script("return document.querySelector('#similarity').hidden")).to be(false)
        browser.click("#similarity-form .act")
        browser.wait { browser.script("return document.querySelectorAll('#matrix td').length") == 9 }
        expect(browser.text("#matrix td")).to eq("1.00")

        browser.click("#tab-rerank")
        browser.click("#rerank-form .act")
        browser.wait { browser.script("return document.querySelectorAll('#ranking tr').length") == 2 }

        browser.click("#tab-entities")
        browser.script("document.querySelector('#entities-text').value = 'the dog live in Paris'")
        browser.click("#entities-form .act")
        browser.wait { browser.text("#marked").start_with?("the") }

        browser.click("#tab-live")
        browser.wait { browser.script("return document.querySelectorAll('#plots figure').length") >= 5 }
        expect(browser.text("#plots")).to include("Pages in use")
        expect(browser.script("return document.querySelector('#problem').hidden")).to be(true)
        expect(browser.console.select { |entry| entry["level"] == "SEVERE" }).to be_empty
      end
    end
  end

  it "opens what its models are for" do
    WebServer.run("serve", "r=#{TinyModels.path("bert-reranker")}") do |server|
      Browser.open(width: 1200, height: 800) do |browser|
        browser.visit("#{server.base}/")
        browser.wait { browser.script("return document.querySelector('#rerank').hidden") == false }
        expect(browser.script("return document.querySelector('#query').value")).to include("Berlin")
      end
    end
  end

  it "asks for the token, and says what went wrong" do
    WebServer.run("serve", *sources, "--token", "secret") do |server|
      Browser.open(width: 1200, height: 800) do |browser|
        browser.visit("#{server.base}/")
        browser.wait { browser.text("#problem").include?("token") }
        browser.type("#token", "secret\t")
        browser.wait { browser.script("return document.querySelector('#chat-model').value") == "llm" }
        expect(browser.script("return document.querySelector('#problem').hidden")).to be(true)
        browser.type("#say", "#{"long " * 100}#{enter}")
        browser.wait { browser.text("#problem").include?("context") }
      end
    end
  end

  it "shows the calls of tools as they come" do
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
    server, llm = ServedModels.scripted("I look. #{call}", pause: 0.05)
    puma = Puma::Server.new(server)
    port = puma.add_tcp_listener("127.0.0.1", 0).addr[1]
    puma.run
    Browser.open(width: 1200, height: 800) do |browser|
      browser.visit("http://127.0.0.1:#{port}/")
      browser.wait { browser.script("return document.querySelector('#chat-model').value") == "llm" }
      tools = [{ type: "function", function: { name: "weather", parameters: { type: "object" } } }]
      browser.script("document.querySelector('#tools').value = #{JSON.generate(JSON.generate(tools))}")
      browser.type("#say", "How is Rome?#{enter}")
      browser.wait { browser.script("return document.querySelectorAll('.turn.call').length") == 1 }
      expect(browser.text(".turn.call")).to eq('weather({"city":"Rome"})')
      expect(browser.text(".turn.assistant")).to eq("I look. ")
    end
    expect(llm.asked.first.last[:tools]).to eq(["weather"])
  ensure
    puma&.stop(true)
  end
end
